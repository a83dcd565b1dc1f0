"""Questions to oracles name contents instead of adapters, and have everything that changes an answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.histories import contents, history, outcome, shape

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import Served
from coldproof.adapters.protocol.images import FIRST_IMAGE, Look, image_id, image_positions
from coldproof.adapters.protocol.requests import (
    PLAIN,
    Arrival,
    Completion,
    CompletionRequest,
    ResponseOptions,
    Stage,
    Token,
)
from coldproof.harness.execution.calibration.calibrate import (
    LONGEST_STALL,
    SHORTEST_STALL,
    STALL_LATENCIES,
    calibrate,
)
from coldproof.harness.execution.oracles.engine import AGAIN, EngineOracle, batches
from coldproof.harness.history.records import Identity, Outcome
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.judge import judge
from coldproof.harness.judgement.oracle import (
    OracleError,
    Question,
    comparable_outcomes,
    distinguishing_question,
    question,
    questions,
)
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ScriptedEngine

PROMPT = range(40, 60)
A, B = Identity("digest-a", None), Identity("digest-b", "red")
SEVERAL = ResponseOptions(answers=2)


@pytest.mark.parametrize(
    ("changes", "compared"),
    [
        ({}, True),
        ({"error": "HTTP 500"}, False),
        ({"error": "HTTP 400", "refused": True}, False),
        ({"answer": ()}, True),
        ({"answer": (), "aborted": Stage.QUEUED}, False),
        ({"aborted": Stage.DECODE}, True),
        ({"prompt": range(62)}, True),
        ({"prompt": range(63)}, False),
        ({"prompt": range(64)}, False),
    ],
    ids=["answered", "failed", "refused", "empty", "aborted early", "aborted late", "just fits", "cut", "never fits"],
)
def test_what_has_a_cold_answer_is_compared(changes: dict[str, Any], compared: bool) -> None:
    """An empty answer is compared. An abort before the first token shows nothing, and an answer beyond the context
    cannot be requested.
    """
    prompt, answer = changes.pop("prompt", PROMPT), changes.pop("answer", (7, 8))
    one = outcome(0, prompt, answer, **changes)
    seen = history(one, shape=shape(max_model_tokens=64))
    assert comparable_outcomes(seen) == ([one] if compared else [])
    assert len(list(questions(seen))) == compared


def test_a_question_is_content_prompt_length_and_response_options() -> None:
    """Salts and priorities do not change a cold answer, and every allowed identity has a question."""
    one = outcome(0, PROMPT, adapter="digest-a", identities=(A, B), options=SEVERAL)
    found = list(questions(history(one)))
    assert found == [Question(tuple(PROMPT), digest, 3, SEVERAL) for digest in ("digest-a", "digest-b")]
    assert question(one, A) == question(one, Identity("digest-a", "red"))


def test_a_distinguishing_question_is_short_and_plain() -> None:
    """The question is sent for every risky request."""
    one = outcome(0, PROMPT, tuple(range(90)), options=SEVERAL)
    assert distinguishing_question(one, A) == Question(tuple(PROMPT), "digest-a", 4, PLAIN)
    assert distinguishing_question(outcome(0, PROMPT, (1, 2)), A).max_tokens == 2


class Recorder(ScriptedEngine):
    """An engine that records its requests and reports a given number of cached tokens."""

    def __init__(self, cached: int | None = 0) -> None:
        super().__init__(caching=False)
        self.cached, self.requests = cached, list[CompletionRequest]()

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Record the request and answer it."""
        self.requests.append(request)
        honest = super().send(request, on_token)
        return Completion(tokens=honest.tokens, finish_reason="stop", cached_tokens=self.cached)


def oracle(engine: ScriptedEngine, folder: Path, name: str = "cold-engine") -> EngineOracle:
    """Return an oracle over this engine."""
    return EngineOracle(name, engine, list(contents(folder).values()), memo={})


@pytest.mark.parametrize(
    ("name", "response_options", "expected"),
    [
        ("cold-engine", PLAIN, ResponseOptions(logprobs=True)),
        ("cold-engine", ResponseOptions(stop=("a",)), ResponseOptions(stop=("a",), logprobs=True)),
        ("cold-engine", SEVERAL, SEVERAL.with_scores()),
        ("fresh-engine", PLAIN, PLAIN),
    ],
)
def test_scores_are_requested_where_they_change_nothing(
    name: str, response_options: ResponseOptions, expected: ResponseOptions, tmp_path: Path
) -> None:
    """The margin rule needs scores, also of sampled answers; a fresh engine is requested without them."""
    engine = Recorder()
    answer = oracle(engine, tmp_path, name).ask(Question(tuple(PROMPT), None, 4, response_options))
    assert [request.options for request in engine.requests] == [expected]
    assert answer.finish_reason == "stop"


def test_no_scores_are_requested_from_an_engine_without_them(tmp_path: Path) -> None:
    """The engine might refuse such a request, and then no requirement could be tested on it."""
    engine = Recorder()
    engine.capabilities |= {Capability.LOGPROBS: Support(False, "has none")}
    oracle(engine, tmp_path).ask(Question(tuple(PROMPT), None, 4, PLAIN))
    assert engine.requests[0].options == PLAIN


class Counting(Recorder):
    """An engine that counts its bursts, and answers with another token in a batch if `wrong`."""

    def __init__(self, *, wrong: bool = False) -> None:
        super().__init__()
        self.wrong, self.bursts = wrong, list[int]()

    def serve(
        self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
    ) -> list[Served]:
        """Record the size of the burst."""
        self.bursts.append(len(arrivals))
        served = super().serve(arrivals, on_token, between)
        if not self.wrong:
            return served
        other = Completion(tokens=(Token(id=7, at=0.0),), finish_reason="stop", cached_tokens=0)
        return [msgspec.structs.replace(one, result=other) for one in served]


def test_plain_questions_about_one_adapter_are_batched_if_batches_are_exact(tmp_path: Path) -> None:
    """Other questions are sent alone, and each only once."""
    engine = Counting()
    one = oracle(engine, tmp_path)
    digest = next(iter(one.adapters))
    base = [Question(tuple(range(i, i + 9)), None, 4) for i in range(10)]
    others = [Question(query.prompt, digest, 4) for query in base[:3]]
    about = [*base, *others, Question(base[0].prompt, None, 4, SEVERAL)]
    alone = {query: one.ask_without_memo(query) for query in about}
    engine.requests.clear()
    one.batches = True
    assert one.ask_all(about) == alone
    assert one.ask_all(about) == alone
    assert engine.bursts == [8, 2, 3]
    assert len(engine.requests) == len(about)


def test_no_questions_are_batched_if_batches_may_change_answers(tmp_path: Path) -> None:
    """The calibration decides this."""
    engine = Counting()
    oracle(engine, tmp_path).ask_all([Question(tuple(range(i, i + 9)), None, 4) for i in range(5)])
    assert engine.bursts == []


def test_a_wrong_batched_answer_gives_no_finding(tmp_path: Path) -> None:
    """The judge sends the question again, alone: batches that change answers cost time, but give no wrong verdict."""
    one = oracle(Counting(wrong=True), tmp_path)
    one.batches = True
    query = Question(tuple(PROMPT), None, 3)
    right = one.ask_without_memo(query)
    assert one.ask_all([query])[query].ids == (7,)
    judgement = judge(history(outcome(0, PROMPT, right.ids)), one, Rule(exact=True), exclusive=True)
    assert "tokens" not in {finding.checker for finding in judgement.findings}
    assert one.ask_all([query]) == {query: right}


def test_a_repeated_question_is_sent_alone_and_in_a_batch(tmp_path: Path) -> None:
    """Different answers are returned, each once, and no request goes to the engine under test."""
    sizes: list[int] = []

    class Varying(ScriptedEngine):
        """An engine that gives another first token to every request of a batch but the first."""

        def serve(
            self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
        ) -> list[Served]:
            """Answer, with other tokens."""
            sizes.append(len(arrivals))
            served = super().serve(arrivals, on_token, between)
            for i, one in enumerate(served[1:], start=1):
                assert isinstance(one.result, Completion)
                other = (msgspec.structs.replace(one.result.tokens[0], id=1), *one.result.tokens[1:])
                served[i] = msgspec.structs.replace(one, result=msgspec.structs.replace(one.result, tokens=other))
            return served

    query = Question(tuple(PROMPT), None, 3)
    steady, varying = (
        EngineOracle("cold-engine", engine(caching=False), list(contents(tmp_path / engine.__name__).values()), memo={})
        for engine in (ScriptedEngine, Varying)
    )
    honest = steady.ask(query).ids
    assert steady.ask_again(query) == ()
    varying.ask(query)
    assert varying.ask_again(query) == ((1, *honest[1:]),)
    assert sizes == [AGAIN]
    varying.itself = True
    assert varying.ask_again(query) == ()
    assert sizes == [AGAIN]


def test_other_response_options_are_another_question(tmp_path: Path) -> None:
    """The same prompt with other options is a new question; an equal question is answered from memory."""
    engine = Recorder()
    one = oracle(engine, tmp_path)
    for response_options in (PLAIN, SEVERAL, PLAIN, SEVERAL):
        one.ask(Question(tuple(PROMPT), None, 4, response_options))
    assert len(engine.requests) == 2


def test_without_salts_prompts_that_begin_alike_are_not_sent_together(tmp_path: Path) -> None:
    """They could hit one another. Each request says that it must be cold, and the answers keep their order."""
    sent: list[list[CompletionRequest]] = []

    class Batches(ScriptedEngine):
        """An engine without salts that records its batches."""

        def __init__(self) -> None:
            super().__init__(caching=False)
            self.capabilities = {**self.capabilities, Capability.CACHE_SALT: Support(False, "no salts")}

        def serve(
            self, arrivals: Sequence[Arrival], on_token: Callable[[int, int], None], between: Callable[[], None]
        ) -> list[Served]:
            """Answer."""
            sent.append([arrival.request for arrival in arrivals])
            return super().serve(arrivals, on_token, between)

    given = dict(contents(tmp_path))
    one = EngineOracle("same-engine", Batches(), list(given.values()), memo={}, itself=True)
    asked = [Question((first, 50, 51, last), None, 3) for first, last in ((40, 1), (40, 2), (41, 3), (40, 4))]
    answers = one.ask_together(asked)
    assert [[request.prompt[-1] for request in batch] for batch in sent] == [[1, 3], [2], [4]]
    assert all(request.cold and request.cache_salt is None for batch in sent for request in batch)
    assert [answer.ids for answer in answers] == [one.ask(question).ids for question in asked]


@pytest.mark.parametrize("cached", [None, 0])
def test_without_salts_an_answer_without_a_count_is_not_known_to_be_cold(tmp_path: Path, cached: int | None) -> None:
    """An engine without its cache needs none."""
    engine = Recorder(cached=cached)
    engine.capabilities = {**engine.capabilities, Capability.CACHE_SALT: Support(False, "no salts")}
    plain = oracle(engine, tmp_path)
    itself = EngineOracle("same-engine", engine, list(plain.adapters.values()), memo={}, itself=True)
    question = Question(tuple(PROMPT), None, 4, PLAIN)
    assert plain.ask(question).tokens
    if cached is None:
        with pytest.raises(OracleError, match=r"no count of cached tokens.*--cold-url"):
            itself.ask(question)
    else:
        assert itself.ask(question).tokens


def test_only_several_answers_may_hit_one_another(tmp_path: Path) -> None:
    """An oracle with any other cached tokens is invalid."""
    one = oracle(Recorder(cached=16), tmp_path)
    assert one.ask(Question(tuple(PROMPT), None, 4, SEVERAL)).tokens
    with pytest.raises(OracleError, match="was not cold: 16 prompt tokens"):
        one.ask(Question(tuple(PROMPT), None, 4, PLAIN))


class Slow(ScriptedEngine):
    """An engine that takes this long for each answer, by its own clock."""

    def __init__(self, seconds: float) -> None:
        super().__init__(caching=False)
        self.seconds, self.now = seconds, 0.0

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Advance the clock and answer."""
        self.now += self.seconds
        return super().send(request, on_token)

    def clock(self) -> float:
        """Return the engine's own time."""
        return self.now


@pytest.mark.parametrize(
    ("latency", "stall"),
    [(0.001, SHORTEST_STALL), (0.5, 0.5 * STALL_LATENCIES), (90.0, LONGEST_STALL)],
    ids=["fast", "slow", "very slow"],
)
def test_a_stall_is_a_hundred_cold_answers_long(latency: float, stall: float, tmp_path: Path) -> None:
    """The time is by the engine's clock and has a minimum and a maximum."""
    one = oracle(Slow(latency), tmp_path)
    found, _ = calibrate(one, list(one.adapters), cell="default", block=BLOCK, slots=4)
    assert found.latency_seconds == pytest.approx(latency)
    assert found.stall_seconds == pytest.approx(stall)


def test_outcomes_are_judged_one_by_one() -> None:
    """The outcomes keep their order."""
    several: list[Outcome] = [outcome(0, PROMPT), outcome(1, PROMPT, (), error="gone"), outcome(2, PROMPT)]
    assert [o.request for o in comparable_outcomes(history(*several))] == [0, 2]


def test_images_that_are_processed_in_different_ways_are_in_different_batches() -> None:
    """vLLM 0.32.0 joins the pixels of a step whatever their types, which ends it."""
    prompts = [image_positions(image_id(name, look=look), 4) for look in Look for name in ("cat", "dog")]
    text = (1, 2, 3)
    questions = [Question(prompt, None, 4) for prompt in (*prompts, text)]
    found = list(batches(questions))
    assert sorted(one.prompt for batch in found for one in batch) == sorted((*prompts, text))
    assert sorted(len(batch) for batch in found) == [1, *[2] * len(Look)]
    assert all(len({prompt[0] >= FIRST_IMAGE for prompt in (one.prompt for one in batch)}) == 1 for batch in found)
