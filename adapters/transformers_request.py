"""A request to Transformers' continuous batching: what came of it so far, and when its client hangs up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from adapters.base import Completion, CompletionRequest, EngineError, RequestRefused, Stage, Token
from adapters.inproc_request import STEP_MS, seconds


class Live:
    """A request that was sent and is not over. `prompt`: its token ids; `step`: when it was sent."""

    def __init__(self, request: CompletionRequest, prompt: tuple[int, ...], *, name: str, step: int) -> None:
        self.request, self.prompt, self.name, self.step = request, prompt, name, step
        self.inside = False  # given to the engine; until then it waits for those of another adapter
        self.tokens: list[Token] = []
        self.used: tuple[int, ...] | None = None  # prompt, as the engine says
        self.problem: EngineError | None = None
        self.cached: int | None = None
        self.preempted_at: list[float] = []
        self.aborted: Stage | None = None
        self.told = 0  # tokens that `on_token` was called for
        self.ended: int | None = None

    def take(self, output: Any, step: int) -> None:
        """Note what a step brought: an output has all of the answer so far."""
        scores: Sequence[float | None] = output.logprobs or [None] * len(output.generated_tokens)
        since, wants = seconds(step - self.step), self.request.surface.logprobs
        for number, score in list(zip(output.generated_tokens, scores, strict=True))[len(self.tokens) :]:
            self.tokens.append(Token(id=int(number), at=since, logprob=score if wants else None))
        self.used = tuple(output.prompt_ids)
        if output.error is not None:
            self.problem = RequestRefused(500, output.error)
        if output.is_finished():
            self.ended = step

    def note(self, *, cached: int, preemptions: int, step: int) -> None:
        """What was seen of it in the engine, after a step."""
        self.cached = cached
        new = preemptions - len(self.preempted_at)
        self.preempted_at += [seconds(step - self.step)] * new

    def hangs_up(self, step: int, stage: Callable[[], Stage]) -> bool:
        """Whether the client does so now. `stage`: where the engine has it."""
        abort = self.request.abort
        if abort is None or self.ended is not None:
            return False
        return abort.is_due(len(self.tokens), (step - self.step) * STEP_MS, stage)

    def result(self, text: str) -> Completion | EngineError:
        """What was collected, with the answer's text."""
        if self.problem is not None:
            return self.problem
        return Completion(
            tokens=tuple(self.tokens),
            finish_reason=None if self.aborted else "length",  # no token ends an answer: see `Engine._send`
            cached_tokens=self.cached,
            text=text,
            prompt=self.used,
            aborted=self.aborted,
            preemptions=len(self.preempted_at),
            preempted_at=tuple(self.preempted_at),
        )
