"""Cold answers from an engine: one with prefix caching off, a fresh one, or the one under test with unused salts.

It sends one request at a time, because GROUND-1 tests whether batches change answers. Where the calibration found that
batches of one adapter do not, they may be used, but never to accuse an engine. Each adapter content is loaded once,
under a unique name.
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.direct_scores import ScoresDirectly
from coldproof.adapters.protocol.engine import Engine, EngineError
from coldproof.adapters.protocol.images import images_of, look_of
from coldproof.adapters.protocol.requests import PLAIN, Arrival, Completion, CompletionRequest
from coldproof.adapters.protocol.weights import ChangesWeights, WeightRoute
from coldproof.harness.execution.models.lora import AdapterFiles
from coldproof.harness.execution.models.versions import Versions
from coldproof.harness.judgement.oracle import Answer, Answers, Oracle, OracleError, Question
from coldproof.harness.workload.steps import START_WEIGHTS

BATCH = 8  # questions at most
SECOND_SERVER = "Start a second server without its prefix cache and give it with --cold-url"
AGAIN = 4  # times that a question is sent again in one batch


class EngineOracle(Oracle):
    """An oracle over an engine. `itself`: the engine under test, past its cache: with salts that are used once or,
    where requests have none, as its adapter does it (COLD_ANSWERS).

    Such an oracle cannot detect an engine that ignores salts, or counts no hit where there was one; the report says so.
    `memo`: the known answers, of which those to `batched` are from batches.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        adapters: list[AdapterFiles],
        *,
        memo: Answers,
        batched: set[Question] | None = None,
        itself: bool = False,
    ) -> None:
        self.name = name
        self.engine = engine
        self.adapters = {files.digest: files for files in adapters}
        self.memo = memo
        self.batched = set() if batched is None else batched
        self.itself = itself
        self.salted = itself and engine.capabilities[Capability.CACHE_SALT].present is True
        self.saltless = itself and not self.salted  # prompts that begin alike could hit one another
        # Requests to a fresh engine stay as plain as possible. An engine without scores may refuse a request for them.
        self.scores = name != "fresh-engine" and engine.capabilities[Capability.LOGPROBS].present is not False
        # Engines with a server report their margins. OpenVINO GenAI reports no margins, but it scores a prompt.
        reports = engine.capabilities[Capability.PROMPT_LOGPROBS].present is True
        self.scores_directly = not reports and engine.capabilities[Capability.DIRECT_SCORES].present is True
        self.scores_prompts = self.scores and (reports or self.scores_directly)
        self.loaded: dict[str, str] = {}
        self.of_weights: Callable[[str], Engine] | None = None  # returns a cold engine that was started with a version
        self.of_version: dict[str, EngineOracle] = {}
        self.versions: Callable[[], Versions] = dict  # those that the engine itself can load, if it is the only one
        self.batches = False  # whether answers of a batch are those of requests alone, by the calibration
        self.lock = threading.Lock()  # one question at a time
        self.on_answer: Callable[[], None] = lambda: None  # called after every answer, by any thread

    def use(self, engine: Engine) -> None:
        """Ask another engine from now on, which has loaded no adapter yet."""
        self.engine = engine
        self.loaded.clear()

    def ask(self, question: Question) -> Answer:
        """Return the cold answer, from memory if known. Raises OracleError."""
        with self.lock:
            if question not in self.memo or question in self.batched:
                self.memo[question] = self.ask_without_memo(question)
                self.batched.discard(question)
            return self.memo[question]

    def ask_all(self, questions: Iterable[Question]) -> Answers:
        """Return the cold answers, from memory if known, else from batches if they may be. Raises OracleError."""
        asked = list(dict.fromkeys(questions))
        if self.batches:
            with self.lock:
                unknown = [one for one in asked if one not in self.memo and one.weights is None]
                for batch in batches(unknown):
                    self.memo.update(zip(batch, self.ask_together(batch), strict=True))
                    self.batched.update(batch)
        return {question: self.memo.get(question) or self.ask(question) for question in asked}

    def ask_again(self, question: Question) -> tuple[tuple[int, ...], ...]:
        """Send a question again, alone and several times in a batch, and return the answers other than the known one.

        The engine under test could hit what a wrong answer left behind, so that it is not asked. Raises OracleError.
        """
        if self.itself or question.weights is not None:
            return ()
        with self.lock:
            known = self.memo[question].ids if question in self.memo else None
            answers = [self.ask_without_memo(question), *self.ask_together([question] * AGAIN)]
        return tuple(dict.fromkeys(answer.ids for answer in answers if answer.ids != known))

    def ask_without_memo(self, question: Question) -> Answer:
        """Query the engine without using the memory. Raises OracleError if it cannot answer."""
        if question.weights is not None:
            of_start = msgspec.structs.replace(question, weights=None)
            if self.of_weights is not None:
                return self.version_oracle(question.weights).ask_without_memo(of_start)
            with self.oracle_errors(), self.serving(question.weights):
                return self.complete(of_start)
        with self.oracle_errors():
            return self.complete(question)

    def complete(self, question: Question) -> Answer:
        """Send one question. Raises EngineError."""
        request = self.request(question)
        if question.options.prompt_logprobs and isinstance(self.engine, ScoresDirectly) and self.scores_directly:
            return self.answer(question, self.engine.score(request))
        return self.answer(question, self.engine.complete(request))

    def version_oracle(self, weights: str) -> EngineOracle:
        """Return the oracle of another version of the weights. Raises OracleError without one."""
        if self.of_weights is None:
            raise OracleError(f"the {self.name} oracle cannot answer for other weights than those of the start")
        engine = self.of_weights(weights)
        known = self.of_version.get(weights)
        if known is None or known.engine is not engine:
            self.of_version[weights] = EngineOracle(self.name, engine, list(self.adapters.values()), memo={})
        return self.of_version[weights]

    @contextlib.contextmanager
    def serving(self, weights: str) -> Iterator[None]:
        """Let the engine under test serve other weights in this context, where a second engine does not fit.

        Its cache is bypassed by unused salts. An update without an effect cannot be seen in this way: see
        `coldproof.harness.features.weights.checks`. Raises OracleError if the engine cannot load the weights.
        """
        versions = self.versions()
        folders = {files.digest: files.folder for files in versions.values()}
        if weights not in folders or not isinstance(self.engine, ChangesWeights):
            raise OracleError(f"the {self.name} oracle cannot answer for other weights than those of the start")
        try:
            self.engine.update_weights(str(folders[weights].resolve()), WeightRoute.PATH)
            yield
        finally:
            self.engine.update_weights(str(versions[START_WEIGHTS].folder.resolve()), WeightRoute.PATH)

    def ask_together(self, batch: list[Question]) -> list[Answer]:
        """Send a batch at once, without using the memory, and return its answers. Raises OracleError.

        Without salts, prompts that begin alike are sent one after another.
        """
        answers: dict[int, Answer] = {}
        for places in apart(batch) if self.saltless else [list(range(len(batch)))]:
            answers |= zip(places, self.served([batch[place] for place in places]), strict=True)
        return [answers[place] for place in range(len(batch))]

    def served(self, batch: list[Question]) -> list[Answer]:
        """Send questions at once and return their answers. Raises OracleError."""
        with self.oracle_errors():
            if self.scores_directly and any(question.options.prompt_logprobs for question in batch):
                return [self.complete(question) for question in batch]  # a direct score knows no batch
            arrivals = [Arrival(self.request(question)) for question in batch]
            served = self.engine.serve(arrivals, lambda *_: None, lambda: None)
            answers = []
            for question, one in zip(batch, served, strict=True):
                if isinstance(one.result, EngineError):
                    raise one.result
                answers.append(self.answer(question, one.result))
            return answers

    @contextlib.contextmanager
    def oracle_errors(self) -> Iterator[None]:
        """Raise OracleError for any EngineError in the block."""
        try:
            yield
        except EngineError as problem:
            raise OracleError(f"the {self.name} oracle cannot answer: {problem}") from problem

    def request(self, question: Question) -> CompletionRequest:
        """Return the request for a question."""
        return CompletionRequest(
            model=self.engine.base_model if question.adapter is None else self.model(question.adapter),
            prompt=question.prompt,
            max_tokens=question.max_tokens,
            cache_salt=f"cold-{secrets.token_hex(12)}" if self.salted else None,
            cold=self.saltless,
            options=question.options.with_scores() if self.scores else question.options,
        )

    def answer(self, question: Question, completion: Completion) -> Answer:
        """Convert a completion to an answer, without tokens that were not requested.

        Raises OracleError if it hit a cache.
        An engine that returns too many tokens does so to the same question of a workload, where that is a finding.
        """
        one = question.options.answers == 1  # several answers hit one another
        if completion.cached_tokens and one:
            raise OracleError(
                f"the {self.name} oracle was not cold: {completion.cached_tokens} prompt tokens came from a cache"
                + (f". {SECOND_SERVER}" if self.saltless else "")
            )
        if completion.cached_tokens is None and one and self.saltless:
            raise OracleError(f"an answer of the {self.name} oracle has no count of cached tokens. {SECOND_SERVER}")
        self.on_answer()
        return Answer(
            completion.tokens[: question.max_tokens],
            tuple(other[: question.max_tokens] for other in completion.others),
            completion.prompt_logprobs,
            completion.finish_reason,
            completion.text,
            completion.prompt_best,
            completion.pooled,
        )

    def fill_slots(self, slots: int) -> None:
        """Load adapters into all slots of the engine. Some faults occur only if the last slot is in use."""
        digests = list(self.adapters)
        for i in range(slots if digests else 0):
            path = str(self.adapters[digests[i % len(digests)]].folder)
            self.engine.load_adapter(f"slot-{i}-{secrets.token_hex(4)}", path, in_place=False)

    def model(self, digest: str) -> str:
        """Return the served name of an adapter content. Load it at its first use."""
        if digest not in self.loaded:
            name = f"oracle-{digest}-{secrets.token_hex(4)}"
            self.engine.load_adapter(name, str(self.adapters[digest].folder), in_place=False)
            self.loaded[digest] = name
        return self.loaded[digest]


def batches(questions: Iterable[Question], most: int = BATCH) -> Iterator[list[Question]]:
    """Yield plain questions about the same adapter content together, `most` at most.

    Images that are processed in different ways are in different batches: vLLM 0.32.0 joins the pixels of a step,
    whatever their types, and ends with "input types can't be cast" (multimodal/inputs.py, `_reduce_data`).
    """
    plain = sorted((one for one in questions if one.options == PLAIN), key=kind_of)
    for _, same in itertools.groupby(plain, key=kind_of):
        while batch := list(itertools.islice(same, most)):
            yield batch


def apart(batch: list[Question]) -> Iterator[list[int]]:
    """Yield the places of questions, so that no two of a list have prompts that begin with the same token."""
    rest = list(range(len(batch)))
    while rest:
        first: dict[tuple[int, ...], int] = {}
        for place in rest:
            first.setdefault(batch[place].prompt[:1], place)
        yield (taken := list(first.values()))
        rest = [place for place in rest if place not in taken]


def kind_of(question: Question) -> tuple[str, ...]:
    """Return what the questions of a batch have in common: the adapter's content, and what the model sees of images."""
    return question.adapter or "", *sorted({str(look_of(image)) for _, image in images_of(question.prompt)})


class FreshOracle(Oracle):
    """Starts an engine with prefix caching on for every new question: its first request. The slowest oracle.

    `start` gets the digest of the weights to start with; None: the usual ones.
    """

    name = "fresh-engine"
    takes_more = False

    def __init__(
        self,
        start: Callable[[str | None], contextlib.AbstractContextManager[Engine]],
        adapters: list[AdapterFiles],
        *,
        memo: Answers,
    ) -> None:
        self.start, self.adapters, self.memo = start, adapters, memo
        self.lock = threading.Lock()

    def ask(self, question: Question) -> Answer:
        """Return the cold answer. Raises OracleError, or EngineStartError if the engine does not start."""
        with self.lock:
            if question not in self.memo:
                with self.start(question.weights) as engine:
                    oracle = EngineOracle(self.name, engine, self.adapters, memo={})
                    of_start = msgspec.structs.replace(question, weights=None)
                    self.memo[question] = oracle.ask_without_memo(of_start)
            return self.memo[question]
