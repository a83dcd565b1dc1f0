"""A request inside vLLM's engine core: how it is put, what has come of it, and when its client hangs up."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from adapters.base import Completion, CompletionRequest, EngineError, RequestRefused, Stage, Token
from adapters.completions import SEED, TOP_LOGPROBS, gap
from adapters.inproc_setup import vllm_module

STEP_MS = 10  # of the engine's own time


def seconds(steps: int) -> float:
    """The engine's own time."""
    return steps * STEP_MS / 1000


def engine_input(engine: Any, request: CompletionRequest, prompt: tuple[int, ...]) -> Any:
    """A prompt as the server hands it on, with the server's checks. Raises ValueError where it refuses."""
    limits = vllm_module("renderers").TokenizeParams(
        max_total_tokens=engine.model_config.max_model_len,
        max_output_tokens=request.max_tokens,
        max_total_tokens_param="max_model_len",
        max_output_tokens_param="max_tokens",
    )
    extras = {} if request.cache_salt is None else {"cache_salt": request.cache_salt}
    (rendered,) = engine.renderer.render_cmpl([{"prompt_token_ids": list(prompt)}], limits, prompt_extras=extras)
    return rendered


def sampling(defaults: Mapping[str, Any], request: CompletionRequest) -> Any:
    """What `completions.body` asks for. The model's own defaults hold where that says nothing, as on the server."""
    module, surface = vllm_module("sampling_params"), request.surface
    pattern = surface.pattern
    return module.SamplingParams(
        **{
            **defaults,
            "n": surface.answers,
            "temperature": 0.0 if surface.answers == 1 else 1.0,
            "seed": SEED,
            "max_tokens": request.max_tokens,
            "ignore_eos": not surface.stop and pattern is None,
            "stop": list(surface.stop),
            "structured_outputs": None if pattern is None else module.StructuredOutputsParams(regex=pattern),
            "logprobs": TOP_LOGPROBS if surface.logprobs else None,
            "prompt_logprobs": 1 if surface.prompt_logprobs else None,
            "output_kind": module.RequestOutputKind.DELTA,
        }
    )


class Live:
    """A request in the engine, which has it in `scheduled` under the name `inner`, or once for each answer."""

    def __init__(
        self, request: CompletionRequest, *, name: str, inner: str, scheduled: Mapping[str, Any], step: int
    ) -> None:
        self.request, self.name, self.step = request, name, step
        answers = [inner] if request.surface.answers == 1 else [f"{i}_{inner}" for i in range(request.surface.answers)]
        self.inner_names = list(dict.fromkeys([*answers, inner]))  # what holds several answers together comes last
        self.cores = [scheduled[each] for each in answers]
        self.answers: list[list[Token]] = [[] for _ in answers]
        self.text = ""
        self.finish_reason: str | None = None
        self.cached_tokens: int | None = None
        self.prompt: tuple[int, ...] | None = None
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.prompt_best: tuple[float | None, ...] | None = None
        self.aborted: Stage | None = None
        self.told = 0  # tokens that `on_token` was called for
        self.ended: int | None = None
        self.preempted_at: list[float] = []

    @property
    def count(self) -> int:
        """Tokens of the first answer so far."""
        return len(self.answers[0])

    @property
    def preemptions(self) -> int:
        """As the scheduler counts them, of all answers."""
        return sum(core.num_preemptions for core in self.cores)

    def wait_for_grammar(self) -> None:
        """Until a pattern is compiled: a thread of vLLM's does that, and the step at which it is ready would vary."""
        for core in self.cores:
            grammar = core.structured_output_request
            while grammar is not None and not grammar.is_grammar_ready:
                time.sleep(0.001)

    def note_preemptions(self, step: int) -> None:
        """Those that a step brought: they happen as it begins, and are known when it has ended."""
        new = self.preemptions - len(self.preempted_at)
        self.preempted_at += [seconds(step - self.step)] * new

    def take(self, output: Any, step: int) -> None:
        """Note what a step brought."""
        if self.prompt is None:
            self.prompt = tuple(output.prompt_token_ids)
            self.cached_tokens = output.num_cached_tokens
        if output.prompt_logprobs:
            rows = zip(self.prompt, output.prompt_logprobs, strict=False)  # too few are for the judge to see
            self.prompt_logprobs = tuple(row[token].logprob if row and token in row else None for token, row in rows)
            self.prompt_best = tuple(
                max(entry.logprob for entry in row.values()) if row else None for row in output.prompt_logprobs
            )
        at = seconds(step - self.step)
        for part in output.outputs:
            scores = part.logprobs or [None] * len(part.token_ids)
            for token, row in zip(part.token_ids, scores, strict=True):
                self.answers[part.index].append(scored(token, at, row))
            if part.index == 0:
                self.text += part.text
                self.finish_reason = part.finish_reason
        if output.finished:
            self.ended = step

    def hangs_up(self, step: int) -> bool:
        """Whether the client does so now."""
        abort = self.request.abort
        if abort is None or self.ended is not None or self.finish_reason is not None:
            return False
        return abort.is_due(self.count, (step - self.step) * STEP_MS, self.stage)

    def stage(self) -> Stage:
        """Where the scheduler has it."""
        running = vllm_module("v1.request").RequestStatus.RUNNING
        if all(core.status != running for core in self.cores):
            return Stage.QUEUED
        return Stage.DECODE if any(core.num_output_tokens for core in self.cores) else Stage.PREFILL

    def result(self) -> Completion | EngineError:
        """What was collected."""
        if self.finish_reason == "error":
            return RequestRefused(500, "the engine ended the request with an error; its log says why")
        return Completion(
            tokens=tuple(self.answers[0]),
            finish_reason=self.finish_reason,
            cached_tokens=self.cached_tokens,
            text=self.text,
            others=tuple(tuple(tokens) for tokens in self.answers[1:]),
            prompt_logprobs=self.prompt_logprobs,
            prompt=self.prompt,
            aborted=self.aborted,
            preemptions=self.preemptions,
            preempted_at=tuple(self.preempted_at),
            prompt_best=self.prompt_best,
        )


def scored(token: int, at: float, row: Any) -> Token:
    """A token with its logprob and gap, if the engine gave a row of token -> rank and logprob."""
    if row is None:
        return Token(id=token, at=at)
    best = [entry.logprob for entry in row.values() if entry.rank <= TOP_LOGPROBS]
    return Token(id=token, at=at, logprob=row[token].logprob, gap=gap(best))
