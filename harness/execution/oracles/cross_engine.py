"""Cold answers from another engine that serves the same model and shares no code with the one under test.

Only plain greedy answers can be compared across engines. For other requests (several sampled answers, stop strings,
structured output, prompt logprobs), and for requests too long for the other engine, the engine's own cold oracle is
used. Answers are equal only within the noise that `coldproof.harness.execution.calibration.cross_engine` measures.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgspec

from coldproof.adapters.protocol.embedding_rows import has_rows
from coldproof.adapters.protocol.engine import Engine
from coldproof.adapters.protocol.requests import PLAIN
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.history.records import common_prefix
from coldproof.harness.judgement.oracle import Answer, Oracle, OracleError, Question


class OtherEngine(Oracle):
    """An oracle over another engine. `cold`: the engine's own oracle, used for all other questions. `reopen` starts the
    other engine again after a crash.
    """

    def __init__(self, other: EngineOracle, cold: Oracle, *, reopen: Callable[[], EngineOracle]) -> None:
        self.other, self.cold, self.reopen = other, cold, reopen
        self.name = f"{other.name} {other.engine.version or 'of unknown version'}"
        self.lock = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """Return the cold answer. Raises OracleError, or EngineStartError if the other engine cannot be restarted."""
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
        if not has_scores(answer):
            answer = with_gaps(answer, self.cold.ask(question))
        # Another tokenizer and server may give another text and finish reason.
        return msgspec.structs.replace(answer, text=None, finish_reason=None)

    def is_for_other(self, question: Question) -> bool:
        """Return whether the other engine can answer: a plain greedy request of tokens for which it has room."""
        greedy = msgspec.structs.replace(question.options, logprobs=False) == PLAIN
        return (
            greedy
            and question.weights is None
            and not has_rows(question.prompt)
            and len(question.prompt) + question.max_tokens <= room(self.other.engine)
        )


def room(engine: Engine) -> int:
    """Return for how many tokens of a request an engine has room. Only half of the pool counts, to be safe."""
    shape = engine.shape
    if shape.pool_blocks is None or shape.block_size is None:
        return shape.max_model_tokens
    return min(shape.max_model_tokens, shape.pool_blocks * shape.block_size // 2)


def has_scores(answer: Answer) -> bool:
    """Return whether an answer has top-2 logprob margins."""
    return any(token.gap is not None for token in answer.tokens)


def with_gaps(answer: Answer, own: Answer) -> Answer:
    """Return an answer with the top-2 margins of the engine's own answer, up to the first token that differs.

    The margins of both engines are the same apart from the noise between them.
    """
    known = [token.gap for token in own.tokens[: common_prefix(answer.ids, own.ids) + 1]]
    gaps = [*known, *[None] * len(answer.tokens)]
    tokens = tuple(msgspec.structs.replace(t, gap=gap) for t, gap in zip(answer.tokens, gaps, strict=False))
    return msgspec.structs.replace(answer, tokens=tokens)
