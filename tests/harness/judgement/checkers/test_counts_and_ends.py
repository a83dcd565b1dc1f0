"""Counts are compared as far as every request told one; every request ends with an answer, or a refusal that is due."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import ask, history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.pooling import Task
from coldproof.adapters.protocol.requests import ResponseOptions, Stage
from coldproof.harness.history.records import Identity, Outcome, QueueSample
from coldproof.harness.judgement.checkers.cached_tokens import check_accounting
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Burst, Meanwhile, Route, SetAdapter, Workload

PROMPT = range(100, 140)
LONG = range(60)
TINY = shape(max_model_tokens=64)


def accounts(
    *outcomes: Outcome, grew: tuple[float, ...], preempted: tuple[int, ...] = (), **engine: Any
) -> list[Finding]:
    """One step for each request, in which the hit counter grew by so much; some steps saw a preemption."""
    steps, counted, seen = [], 0.0, 0.0
    for i, growth in enumerate(grew):
        before = Metrics(hit_tokens=counted, preemptions=seen)
        counted, seen = counted + growth, seen + (i in preempted)
        steps.append(record(i, before=before, after=Metrics(hit_tokens=counted, preemptions=seen)))
    return check_accounting(history(*outcomes, steps=tuple(steps), shape=shape(**engine)), exclusive=True)


def told(number: int, cached: int | None = 32, **changes: Any) -> Outcome:
    """A request that was told of so many cached tokens."""
    return outcome(number, PROMPT, cached_tokens=cached, **changes)


SILENT: list[dict[str, Any]] = [
    {"cached": None},
    {"cached": None, "aborted": Stage.DECODE},
    {"cached": None, "error": "HTTP 400", "refused": True},
]
EACH = {"surface": ResponseOptions(answers=2)}


def test_the_counter_of_two_engines_with_one_tier_is_of_both() -> None:
    """And the requests report what the first one found."""
    assert accounts(told(0), grew=(96,)) != []
    assert accounts(told(0), grew=(96,), publishes_answers=False, second_tier=True) == []


@pytest.mark.parametrize("silent", [*SILENT, EACH])
def test_steps_are_compared_exactly_up_to_the_first_that_tells_no_count(silent: dict[str, Any]) -> None:
    """An aborted or refused request tells none, and each of several answers looks for itself."""
    odd = told(2, **silent)
    assert accounts(told(0), told(1), odd, told(3), grew=(32, 32, 40, 32)) == []
    (found,) = accounts(told(0), told(1), odd, told(3), grew=(32, 64, 0, 0))
    assert found.failure_class is FailureClass.ACCOUNTING
    assert "reported 64 cached tokens in total, but the engine's hit counter grew by 96" in found.sentence


@pytest.mark.parametrize(("silent", "most"), [*[(silent, 40) for silent in SILENT], (EACH, 80)])
def test_who_tells_no_count_can_have_hit_no_more_than_its_prompt(silent: dict[str, Any], most: int) -> None:
    """Each of several answers as much; those who tell theirs are counted whatever stands between them."""
    for odd in (0, 1, 2):
        asked = [told(i, **(silent if i == odd else {})) for i in range(3)]
        allowed = [grew for grew in range(0, 200, 8) if not accounts(*asked, grew=(0, 0, grew))]
        assert allowed == list(range(64, 64 + most + 1, 8)) if odd == 0 else set(allowed) <= {64, *range(64, 145, 8)}


def test_one_silent_request_of_a_burst_leaves_its_step_vague() -> None:
    """Within what it can have hit itself."""
    beside = [told(0), told(1, cached=None, step=0, aborted=Stage.DECODE)]
    assert [grew for grew in (24, 32, 72, 80) if not accounts(*beside, grew=(grew,))] == [32, 72]


def test_a_step_with_a_preemption_is_compared_as_far_as_the_engines_rule_is_known() -> None:
    """Who was preempted looks again: one engine counts that apart, another may count each look."""
    steps = (told(0), told(1), told(2))
    for grew, first_only, any_rule in (
        ((32, 32, 32), [], []),
        ((32, 39, 32), [], []),  # the reference cache allows 39 of these 40 tokens
        ((32, 64, 32), [1], []),
        ((32, 0, 32), [], []),
        ((32, 0, 24), [1], [1]),
        ((16, 64, 32), [1], [1]),
    ):
        for known, expected in ((True, first_only), (False, any_rule)):
            found = accounts(*steps, grew=grew, preempted=(1,), counts_first_lookups=known)
            assert [1] * len(found) == expected, (grew, known)


def test_who_was_never_preempted_beside_one_who_was_is_compared_exactly() -> None:
    """Where the engine tells whom it was."""
    calm = told(1, step=0, preemptions=0, sent=0.0)
    for lost, grew in ((0, 64), (2, 71)):
        crowd = (told(0, preemptions=lost), calm)
        known = {"preempted": (0,), "counts_first_lookups": True}
        assert accounts(*crowd, grew=(grew,), **known) == []
        assert len(accounts(*crowd, grew=(grew + 1,), **known)) == 1
        assert len(accounts(*crowd, grew=(31,), **known)) == 1


def test_what_one_step_counts_too_few_another_may_make_up_for() -> None:
    """Only the sum is the engine's: it may publish a step's count in the next look."""
    assert accounts(told(0), told(1), grew=(0, 64)) == []


def looked_up(*outcomes: Outcome, grew: tuple[tuple[float, float], ...], **engine: Any) -> list[str]:
    """What is said where hits and queries grew by so much, in a step for each request."""
    steps, hit, queried = [], 0.0, 0.0
    for i, (hits, queries) in enumerate(grew):
        before = Metrics(hit_tokens=hit, queried_tokens=queried)
        hit, queried = hit + hits, queried + queries
        steps.append(record(i, before=before, after=Metrics(hit_tokens=hit, queried_tokens=queried)))
    seen = history(*outcomes, steps=tuple(steps), shape=shape(**engine))
    return [found.sentence for found in check_accounting(seen, exclusive=True)]


@pytest.mark.parametrize(("queries", "wrong"), [(40, False), (32, False), (31, True), (0, True)])
def test_nothing_can_be_hit_that_was_not_looked_up(queries: float, wrong: bool) -> None:
    """In any one step, whatever the others looked up, and by whatever rule."""
    found = looked_up(told(0, 0), told(1), grew=((0, 40), (32, queries)))
    assert bool(found) is wrong
    assert all("Step 1: the engine's hit counter grew by 32" in sentence for sentence in found)


@pytest.mark.parametrize(("queries", "wrong"), [(80, False), (79, True), (81, True), (40, True)])
def test_each_prompt_is_queried_once_where_that_is_the_rule(queries: float, wrong: bool) -> None:
    """By its length; nothing where the rule is another, or the cache is off."""
    steps = ((0.0, 40.0), (32.0, queries - 40))
    known = looked_up(told(0, 0), told(1), grew=steps, counts_first_lookups=True)
    assert bool(known) is wrong
    if wrong and queries > 72:
        assert known == [
            "Prompts of 80 tokens in total were looked up, but the engine's counter of queried tokens grew by "
            f"{queries:.0f}."
        ]
        assert looked_up(told(0, 0), told(1), grew=steps) == []
    off = {"counts_first_lookups": True, "prefix_caching": False}
    assert looked_up(told(0, 0), told(1, 0), grew=((0, 0), (0, 0)), **off) == []


@pytest.mark.parametrize(("task", "most"), [(Task.EMBED, 80), (Task.SCORE, 80), (Task.COSINE, 81)])
def test_the_text_beside_a_prompt_is_looked_up_too(task: Task, most: int) -> None:
    """A cosine is of two embeddings; no route for vectors reports a count."""
    vector = told(1, None, surface=ResponseOptions(pooled=task))
    for queries, wrong in ((most, False), (most + 1, True)):
        grew = ((0.0, 40.0), (0.0, queries - 40.0))
        assert bool(looked_up(told(0, 0), vector, grew=grew, counts_first_lookups=True)) is wrong


@pytest.mark.parametrize(
    "odd", [{"surface": ResponseOptions(prompt_logprobs=True)}, {"cached": None, "aborted": Stage.QUEUED}]
)
@pytest.mark.parametrize("queries", [0, 40])
def test_who_may_not_have_looked_up_may_be_counted_or_not(odd: dict[str, Any], queries: float) -> None:
    """A prompt whose scores are wanted is computed; who was aborted in the queue never came to it."""
    asked = (told(0, 0), told(1, **{"cached": 0, **odd}))
    assert looked_up(*asked, grew=((0, 40), (0, queries)), counts_first_lookups=True) == []
    assert looked_up(*asked, grew=((0, 40), (0, 41)), counts_first_lookups=True) != []


def test_failed_loads_leave_a_step_open_upwards() -> None:
    """Who was let down looks again; what is owed of the others is owed all the same."""
    for grew, wrong in ((32, False), (999, False), (31, True)):
        steps = (
            record(0, before=Metrics(hit_tokens=0, failed_loads=0), after=Metrics(hit_tokens=0, failed_loads=1)),
            record(1, before=Metrics(hit_tokens=0, failed_loads=1), after=Metrics(hit_tokens=grew, failed_loads=1)),
        )
        assert bool(check_accounting(history(told(0), told(1), steps=steps), exclusive=True)) is wrong


def liveness(*outcomes: Outcome, **changes: Any) -> list[FailureClass]:
    """What is said of these requests' ends."""
    return [f.failure_class for f in check_liveness(history(*outcomes, **changes))]


def refused(**changes: Any) -> Outcome:
    """A prompt of 60 tokens that the engine said no to."""
    return outcome(0, LONG, (), **{"error": "HTTP 400", "refused": True, **changes})


@pytest.mark.parametrize(
    ("answer", "engine", "expected"),
    [
        (5, TINY, []),
        (4, TINY, [FailureClass.API]),
        (5, shape(pool_blocks=4), []),
        (4, shape(pool_blocks=4), [FailureClass.API]),
        (5, shape(), [FailureClass.API]),
    ],
    ids=["too long", "just fits", "more than the pool", "just the pool", "room for all"],
)
def test_a_refusal_is_right_only_where_the_request_does_not_fit(
    answer: int, engine: Any, expected: list[FailureClass]
) -> None:
    """Prompt and answer together, in the model and in the pool."""
    assert liveness(refused(max_tokens=answer), shape=engine) == expected


@pytest.mark.parametrize(
    ("route", "overlapped", "expected"),
    [
        (Route.UNLOAD_LOAD, True, []),
        (Route.IN_PLACE, True, [FailureClass.API]),
        (Route.UNLOAD_LOAD, False, [FailureClass.API]),
    ],
    ids=["unloaded meanwhile", "replaced meanwhile", "another request's adapter"],
)
def test_a_name_with_nothing_behind_it_may_be_refused(
    route: Route, overlapped: bool, expected: list[FailureClass]
) -> None:
    """Between unload and load the name is gone; a reload in place leaves no such moment, nor another name's unload."""
    change = SetAdapter(name="tenant", content="B", path="files-B", route=route)
    busy = Burst(requests=(ask(adapter="tenant"),), meanwhile=Meanwhile(change=change, after_tokens=1))
    met = (Identity("digest-a", None), Identity("digest-b", None))[: 1 + overlapped]
    asked = refused(identities=met, adapter="digest-a")
    assert liveness(asked, shape=shape(), workload=Workload((busy,))) == expected


@pytest.mark.parametrize(
    ("changes", "lost", "expected"),
    [
        ({}, None, FailureClass.API),
        ({"silent": True}, "nothing moved", FailureClass.HANG),
        ({}, "gone", FailureClass.CRASH),
    ],
)
def test_a_prompt_that_never_fits_must_be_refused_and_nothing_else(
    changes: dict[str, Any], lost: str | None, expected: FailureClass
) -> None:
    """An internal error, a hang or a crash is no refusal."""
    endless = outcome(0, range(200), (), **{"error": "HTTP 500", **changes})
    assert liveness(endless, shape=TINY, engine_lost=lost) == [expected]


def test_an_answer_to_a_prompt_that_never_fits_is_an_api_failure() -> None:
    """It was cut, or it is another prompt's. One that was aborted may have been on its way to a refusal."""
    endless = outcome(0, range(64), (1, 2, 3))
    (found,) = check_liveness(history(endless, shape=TINY))
    assert (found.failure_class, found.request) == (FailureClass.API, 0)
    assert "64 prompt tokens exceed the engine's limit" in found.sentence
    assert liveness(outcome(0, range(63), (1,)), shape=TINY) == []
    assert liveness(outcome(0, range(64), (), aborted=Stage.QUEUED), shape=TINY) == []


def test_too_many_tokens_are_an_api_failure_where_no_cold_answer_shows_it() -> None:
    """Of any of its answers; elsewhere the answer differs from the cold one."""
    longer = outcome(0, range(62), (1, 2, 3, 4), max_tokens=3)
    assert liveness(longer, shape=TINY) == [FailureClass.API]
    assert liveness(msgspec.structs.replace(longer, tokens=(), others=(longer.tokens,)), shape=TINY)
    assert liveness(msgspec.structs.replace(longer, max_tokens=4), shape=TINY) == []
    assert liveness(longer) == []


def test_an_aborted_request_owes_no_token() -> None:
    """Its client left; one that was awaited and ended empty is a failure."""
    assert liveness(outcome(0, PROMPT, (), aborted=Stage.PREFILL, finish_reason=None)) == []
    assert liveness(outcome(0, PROMPT, ())) == [FailureClass.API]


def test_a_stall_that_ended_by_itself_is_a_hang_all_the_same() -> None:
    """Every request was answered at last, on a server that nobody stopped for it."""
    queue = QueueSample(at=20.0, running=0, waiting=2, pool_usage=1.0)
    stalled = history(outcome(0, PROMPT), stalled=queue, engine_lost="no progress for 20 s")
    assert [f.failure_class for f in check_liveness(stalled)] == [FailureClass.HANG]


CHECKERS = ("liveness", "tokens", "surface", "bounds", "accounting", "concurrency", "order", "conservation")


@pytest.mark.parametrize("best", range(len(CHECKERS)))
def test_of_several_findings_the_strongest_is_spoken_of(best: int) -> None:
    """An end before an answer, an answer before a count; of one checker the first request before later ones."""
    said = [
        Finding(checker=checker, failure_class=FailureClass.API, sentence=f"{checker} {request}", request=request)
        for request in (7, 3, None)
        for checker in CHECKERS[best:][::-1]
    ]
    whole = judge_again(history(outcome(0, PROMPT, error="gone")), {}, Rule(exact=True), exclusive=True)
    for findings in (said, said[::-1]):
        worst = msgspec.structs.replace(whole, findings=tuple(findings)).worst()
        assert (worst.checker, worst.request) == (CHECKERS[best], None)
    requests = tuple(finding for finding in said if finding.request is not None)
    assert msgspec.structs.replace(whole, findings=requests).worst().request == 3
