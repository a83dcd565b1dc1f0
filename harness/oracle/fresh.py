"""The dearest oracle: a just-started engine, prefix caching on, whose first request is the question."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager

from adapters.base import Engine
from harness.models.adapters import AdapterFiles
from harness.oracle.base import Answer, Answers, Question
from harness.oracle.engine import EngineOracle


class FreshOracle:
    """Starts an engine for every question that was not asked before: seconds each, beyond doubt."""

    name = "fresh-engine"

    def __init__(
        self, start: Callable[[], AbstractContextManager[Engine]], adapters: list[AdapterFiles], *, memo: Answers
    ) -> None:
        self.start, self.adapters, self.memo = start, adapters, memo
        self.lock = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """The cold answer. Raises OracleError, or EngineStartError when the engine does not come up."""
        with self.lock:
            if question not in self.memo:
                with self.start() as engine:
                    oracle = EngineOracle(self.name, engine, self.adapters, memo={})
                    self.memo[question] = oracle.ask_anew(question)
            return self.memo[question]
