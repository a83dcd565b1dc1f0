"""A request of Transformers' continuous batching, with its collected outputs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coldproof.adapters.common.stepping import SteppedRequest, seconds
from coldproof.adapters.protocol.engine import EngineError, RequestRefused
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, Stage, Token

CHILD = "__child#"  # between the name of a request and the number of a child


class TransformersRequest(SteppedRequest):
    """A sent request. `prompt`: its token ids. `answers`: the tokens of all its answers, `tokens` first.

    `step`: when it was sent. `stage`: returns its stage in the engine.
    """

    def __init__(
        self,
        request: CompletionRequest,
        prompt: tuple[int, ...],
        *,
        name: str,
        step: int,
        stage: Callable[[TransformersRequest], Stage] = lambda _: Stage.UNSEEN,
    ) -> None:
        super().__init__(request, step)
        self.prompt, self.name, self._stage = prompt, name, stage
        self.answers: list[list[Token]] = [self.tokens, *([] for _ in range(request.options.answers - 1))]
        self._over: set[int] = set()  # the answers that have ended
        self.inside = False  # passed to the engine; before that, it waits for requests of another adapter
        self.used: tuple[int, ...] | None = None  # the prompt as the engine reports it
        self.problem: EngineError | None = None
        self.cached: int | None = None
        self.preempted_at: list[float] = []

    @property
    def names(self) -> list[str]:
        """Return the engine's names of the request and of the children that it forks for further answers."""
        return [self.name, *(f"{self.name}{CHILD}{i}" for i in range(len(self.answers) - 1))]

    def take(self, output: Any, step: int) -> None:
        """Add the output of a step, which contains one whole answer so far."""
        number = self.names.index(output.request_id)
        tokens = self.answers[number]
        scores: Sequence[float | None] = output.logprobs or [None] * len(output.generated_tokens)
        since = seconds(step - self.step)
        for token, score in list(zip(output.generated_tokens, scores, strict=True))[len(tokens) :]:
            tokens.append(Token(id=int(token), at=since, logprob=score))
        if number == 0:
            self.used = tuple(output.prompt_ids)
        if output.error is not None:
            self.problem = RequestRefused(500, output.error)
        if output.is_finished():
            self._over.add(number)
        if len(self._over) == len(self.answers) or self.problem is not None:
            self.ended = step
            self.finish_reason = "length"  # no token ends an answer: see `TransformersEngine._admit`

    def note(self, *, cached: int, preemptions: int, step: int) -> None:
        """Record the request's cached tokens and preemptions after a step."""
        self.cached = cached
        new = preemptions - len(self.preempted_at)
        self.preempted_at += [seconds(step - self.step)] * new

    def stage(self) -> Stage:
        """Return how far the engine has come with it."""
        return self._stage(self)

    def result(self, text: str) -> Completion | EngineError:
        """Return the completion with the answer's text, or the engine's error."""
        if self.problem is not None:
            return self.problem
        return Completion(
            tokens=tuple(self.tokens),
            finish_reason=self.finish_reason,
            cached_tokens=self.cached,
            text=text,
            others=tuple(tuple(tokens) for tokens in self.answers[1:]),
            prompt=self.used,
            aborted=self.aborted,
            preemptions=len(self.preempted_at),
            preempted_at=tuple(self.preempted_at),
        )
