"""A request in OpenVINO GenAI's pipeline, with its collected outputs."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import takewhile

from coldproof.adapters.common.stepping import SteppedRequest, seconds
from coldproof.adapters.openvino.setup import Output
from coldproof.adapters.openvino.step_counts import Progress
from coldproof.adapters.protocol.engine import EngineError, RequestRefused
from coldproof.adapters.protocol.requests import Arrival, Completion, CompletionRequest, Stage, Token

TOO_LARGE = 413
GIVEN_UP = "the engine dropped the request for lack of cache blocks (GenerationStatus.IGNORED)"
ENDS = {"LENGTH": "length", "STOP": "stop"}


class OpenVinoRequest(SteppedRequest):
    """A request that was added to the engine under a number."""

    def __init__(self, request: CompletionRequest, number: int, *, step: int) -> None:
        super().__init__(request, step)
        self.number, self.progress = number, Progress(len(request.prompt))
        self.prompt_logprobs: tuple[float | None, ...] | None = None
        self.refused = False

    def end(self, status: str, step: int) -> None:
        """Record the end of the request."""
        self.refused, self.ended = status == "IGNORED", step

    def take(self, output: Output, step: int) -> None:
        """Add new tokens, with logprobs if requested. The first output contains the echoed prompt."""
        ids, scores, at = output.ids, output.scores, seconds(step - self.step)
        if self.request.options.prompt_logprobs and self.prompt_logprobs is None:
            ids, echoed = ids[len(self.request.prompt) :], scores[: len(scores) - 1]
            scores = scores[len(scores) - 1 :]
            # The first token has no score: the engine returns 1 for it, unless the token came from the cache.
            self.prompt_logprobs = tuple(None if score > 0 else score for score in echoed)
        scored = scores if self.request.options.logprobs and len(scores) == len(ids) else [None] * len(ids)
        self.tokens += [Token(id=token, at=at, logprob=score) for token, score in zip(ids, scored, strict=True)]
        self.finish_reason = ENDS.get(output.reason, self.finish_reason)

    def stage(self) -> Stage:
        """Return how far the engine has come with it, as far as its steps show."""
        if self.count:
            return Stage.DECODE
        return {True: Stage.PREFILL, False: Stage.QUEUED, None: Stage.UNSEEN}[self.progress.begun]

    def result(self, *, counted: bool) -> Completion | EngineError:
        """Return the completion, or RequestRefused if dropped. `counted`: whether steps bound the cached tokens."""
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


def first_batch(arrivals: Sequence[Arrival], waiting: Sequence[int], now_ms: int) -> list[int]:
    """Return the longest start of `waiting` whose requests have arrived and have the same model."""

    def joins(number: int) -> bool:
        one = arrivals[number]
        return one.offset_ms <= now_ms and one.request.model == arrivals[waiting[0]].request.model

    return list(takewhile(joins, waiting))


def completion_of(answer: Output) -> Completion | EngineError:
    """Return the result of one request of a `generate()`."""
    if not answer.ids:  # the engine does not report the reason
        return RequestRefused(TOO_LARGE, GIVEN_UP)
    tokens = tuple(Token(id=token, at=0.0) for token in answer.ids)
    return Completion(tokens=tokens, finish_reason=ENDS.get(answer.reason), cached_tokens=None)
