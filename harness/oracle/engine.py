"""Cold answers from a real engine: one with prefix caching off, a fresh one, or the one under test on unused salts.

Asked one request at a time: batches are what GROUND-1 examines, not what it stands on. Each adapter content is loaded
once, under a name of its own that nothing else uses.
"""

from __future__ import annotations

import contextlib
import secrets
import threading
from collections.abc import Iterator

from adapters.base import Arrival, Completion, CompletionRequest, Engine, EngineError, Surface
from harness.models.adapters import AdapterFiles
from harness.oracle.base import Answer, Answers, OracleError, Question


class EngineOracle:
    """An oracle over an engine. `salted`: bypass the engine's own cache with a salt that is used once.

    A salted oracle cannot see salt bugs; the report says so.
    """

    def __init__(
        self, name: str, engine: Engine, adapters: list[AdapterFiles], *, memo: Answers, salted: bool = False
    ) -> None:
        self.name = name
        self.engine = engine
        self.adapters = {files.digest: files for files in adapters}
        self.memo = memo
        self.salted = salted
        self.scores = name != "fresh-engine"  # a fresh engine is asked for tokens and nothing else
        self.loaded: dict[str, str] = {}
        self.lock = threading.Lock()  # one question at a time, whoever asks

    def ask(self, question: Question) -> Answer:
        """The cold answer, from memory if it was asked before."""
        with self.lock:
            if question not in self.memo:
                self.memo[question] = self.ask_anew(question)
            return self.memo[question]

    def ask_anew(self, question: Question) -> Answer:
        """Ask the engine, memory aside. Raises OracleError when it cannot answer."""
        with self.troubles():
            return self.answer(question, self.engine.complete(self.request(question)))

    def ask_together(self, batch: list[Question]) -> list[Answer]:
        """Ask all of a batch at once, memory aside: for what has to know how batches answer. Raises OracleError."""
        with self.troubles():
            arrivals = [Arrival(self.request(question)) for question in batch]
            served = self.engine.serve(arrivals, lambda *_: None, lambda: None)
            answers = []
            for question, one in zip(batch, served, strict=True):
                if isinstance(one.result, EngineError):
                    raise one.result
                answers.append(self.answer(question, one.result))
            return answers

    @contextlib.contextmanager
    def troubles(self) -> Iterator[None]:
        """The engine's troubles are the oracle's."""
        try:
            yield
        except EngineError as problem:
            raise OracleError(f"the {self.name} oracle cannot answer: {problem}") from problem

    def request(self, question: Question) -> CompletionRequest:
        """A question as the engine gets it."""
        return CompletionRequest(
            model=self.engine.base_model if question.adapter is None else self.model(question.adapter),
            prompt=question.prompt,
            max_tokens=question.max_tokens,
            cache_salt=self.salt(),
            surface=self.surface(question),
        )

    def answer(self, question: Question, completion: Completion) -> Answer:
        """What the engine said, if it said so cold. Raises OracleError."""
        if completion.cached_tokens and question.surface.answers == 1:  # several answers hit one another
            raise OracleError(
                f"the {self.name} oracle was not cold: {completion.cached_tokens} of its tokens came from a cache"
            )
        if len(completion.tokens) > question.max_tokens:
            raise OracleError(f"the {self.name} oracle gave {len(completion.tokens)} tokens for {question.max_tokens}")
        return Answer(
            completion.tokens,
            completion.others,
            completion.prompt_logprobs,
            completion.finish_reason,
            completion.text,
            completion.prompt_best,
        )

    def surface(self, question: Question) -> Surface:
        """The question's own, with scores where they do not change what is asked."""
        return question.surface.with_scores() if self.scores else question.surface

    def fill_slots(self, slots: int) -> None:
        """Occupy every adapter slot of the engine. Some faults only show when the last one is in use."""
        digests = list(self.adapters)
        for i in range(slots if digests else 0):
            path = str(self.adapters[digests[i % len(digests)]].folder)
            self.engine.load_adapter(f"slot-{i}-{secrets.token_hex(4)}", path, in_place=False)

    def salt(self) -> str | None:
        """A salt that nothing else uses, where the cache has to be bypassed."""
        return f"cold-{secrets.token_hex(12)}" if self.salted else None

    def model(self, digest: str) -> str:
        """The served name of an adapter content, loaded at its first use."""
        if digest not in self.loaded:
            name = f"oracle-{digest}-{secrets.token_hex(4)}"
            self.engine.load_adapter(name, str(self.adapters[digest].folder), in_place=False)
            self.loaded[digest] = name
        return self.loaded[digest]
