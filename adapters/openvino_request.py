"""A request inside OpenVINO GenAI: how it is put, what has come of it, and when its client hangs up."""

from __future__ import annotations

from adapters.base import Completion, CompletionRequest, EngineError, RequestRefused, Stage, Token
from adapters.openvino_setup import Output
from adapters.openvino_steps import Progress

STEP_MS = 10  # of the engine's own time
TOO_LARGE, GIVEN_UP = 413, "the engine gave it up for want of cache blocks (GenerationStatus.IGNORED)"
ENDS = {"LENGTH": "length", "STOP": "stop"}


def seconds(steps: int) -> float:
    """The engine's own time."""
    return steps * STEP_MS / 1000


class Live:
    """A request that was added to the engine under a number."""

    def __init__(self, request: CompletionRequest, number: int, *, step: int) -> None:
        self.request, self.number, self.step = request, number, step
        self.progress = Progress(len(request.prompt))
        self.tokens: list[Token] = []
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.finish_reason: str | None = None
        self.aborted: Stage | None = None
        self.refused = False
        self.told = 0  # tokens that `on_token` was called for
        self.ended: int | None = None

    @property
    def count(self) -> int:
        """Tokens of its answer so far."""
        return len(self.tokens)

    def end(self, status: str, step: int) -> None:
        """The engine has done with it."""
        self.refused, self.ended = status == "IGNORED", step

    def take(self, output: Output, step: int) -> None:
        """Tokens, with their scores if those were asked for. An echoed prompt comes with the first."""
        ids, scores, at = output.ids, output.scores, seconds(step - self.step)
        if self.request.surface.prompt_logprobs and self.prompt_logprobs is None:
            ids, echoed = ids[len(self.request.prompt) :], scores[: len(scores) - 1]
            scores = scores[len(scores) - 1 :]
            # The first token has no score; the engine gives 1 in its place, unless it came from the cache.
            self.prompt_logprobs = tuple(None if score > 0 else score for score in echoed)
        scored = scores if self.request.surface.logprobs and len(scores) == len(ids) else [None] * len(ids)
        self.tokens += [Token(id=token, at=at, logprob=score) for token, score in zip(ids, scored, strict=True)]
        self.finish_reason = ENDS.get(output.reason, self.finish_reason)

    def hangs_up(self, step: int) -> bool:
        """Whether the client does so now."""
        abort = self.request.abort
        if abort is None or self.ended is not None:
            return False
        return abort.is_due(self.count, (step - self.step) * STEP_MS, self.stage)

    def stage(self) -> Stage:
        """How far the engine has come with it, as far as its steps tell."""
        if self.count:
            return Stage.DECODE
        return {True: Stage.PREFILL, False: Stage.QUEUED, None: Stage.UNSEEN}[self.progress.begun]

    def result(self, *, counted: bool) -> Completion | EngineError:
        """What was collected. `counted`: whether the steps tell of hits."""
        if self.refused:
            return RequestRefused(TOO_LARGE, GIVEN_UP)
        between = self.progress.hit if counted and self.count else None
        return Completion(
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            cached_tokens=between[0] if between is not None and between[0] == between[1] else None,
            cached_between=between,
            prompt_logprobs=self.prompt_logprobs,
            aborted=self.aborted,
        )
