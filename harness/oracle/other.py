"""Cold answers from another engine that serves the same model: it shares no bug with the one under test.

Only plain greedy answers can be compared across engines. Whatever else a request asks for (several sampled answers,
stop strings, structured output, scores of the prompt), and what the other engine has no room for, the engine's own cold
one is asked. What is equal here is equal within the noise that `harness.between` measures, never bit for bit.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from adapters.base import PLAIN, Engine
from harness.oracle.base import Answer, Oracle, OracleError, Question
from harness.oracle.engine import EngineOracle
from harness.tokens_computed import common_prefix

ACROSS = "engine:"  # how such an oracle's name begins, on the command line and in reports


class OtherEngine:
    """`other` answers what `cold`, the engine's own oracle, need not. `reopen`: a new one in place of one that died."""

    def __init__(self, other: EngineOracle, cold: Oracle, *, reopen: Callable[[], EngineOracle]) -> None:
        self.other, self.cold, self.reopen = other, cold, reopen
        self.name = f"{other.name} {other.engine.version or 'of unknown version'}"
        self.lock = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """The cold answer. Raises OracleError, or EngineStartError where the other engine does not come back."""
        if not self.is_for_other(question):
            return self.cold.ask(question)
        with self.lock:
            try:
                answer = self.other.ask(question)
            except OracleError:
                if self.other.engine.alive():
                    raise
                self.other = self.reopen()
                answer = self.other.ask(question)
        if not told(answer):
            answer = with_gaps(answer, self.cold.ask(question))
        # Texts and reasons for an end are the words of another tokenizer and another server.
        return msgspec.structs.replace(answer, text=None, finish_reason=None)

    def is_for_other(self, question: Question) -> bool:
        """Whether two engines must answer alike: greedily, and within what the other has room for."""
        greedy = msgspec.structs.replace(question.surface, logprobs=False) == PLAIN
        return greedy and len(question.prompt) + question.max_tokens <= room(self.other.engine)


def room(engine: Engine) -> int:
    """Tokens of a request that an engine has room for, with some to spare: no engine uses every block of its pool."""
    shape = engine.shape
    if shape.pool_blocks is None or shape.block_size is None:
        return shape.max_model_tokens
    return min(shape.max_model_tokens, shape.pool_blocks * shape.block_size // 2)


def told(answer: Answer) -> bool:
    """Whether an engine says how far the runners-up were behind its tokens."""
    return any(token.gap is not None for token in answer.tokens)


def with_gaps(answer: Answer, own: Answer) -> Answer:
    """An answer with the gaps that another engine tells, for as long as it has the same text before it: what it takes
    to overcome one is the same for both, but for the noise between them."""
    known = [token.gap for token in own.tokens[: common_prefix(answer.ids, own.ids) + 1]]
    gaps = [*known, *[None] * len(answer.tokens)]
    tokens = tuple(msgspec.structs.replace(t, gap=gap) for t, gap in zip(answer.tokens, gaps, strict=False))
    return msgspec.structs.replace(answer, tokens=tokens)


def is_across(oracle: str) -> bool:
    """Whether an oracle, by its name in a report or on the command line, is another engine."""
    return oracle.startswith(ACROSS)
