"""The slowest oracle: for each question, it starts an engine with prefix caching on."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from coldproof.adapters.protocol.engine import Engine
from coldproof.harness.execution.models.lora import AdapterFiles
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.oracle import Answer, Answers, Question


class FreshOracle:
    """Starts an engine for every new question, which is its first request. This takes seconds each time."""

    name = "fresh-engine"

    def __init__(
        self, start: Callable[[], AbstractContextManager[Engine]], adapters: list[AdapterFiles], *, memo: Answers
    ) -> None:
        self.start, self.adapters, self.memo = start, adapters, memo
        self.lock = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """Return the cold answer. Raises OracleError, or EngineStartError if the engine does not start."""
        with self.lock:
            if question not in self.memo:
                with self.start() as engine:
                    oracle = EngineOracle(self.name, engine, self.adapters, memo={})
                    self.memo[question] = oracle.ask_without_memo(question)
            return self.memo[question]
