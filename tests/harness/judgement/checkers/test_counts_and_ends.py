"""Counts are compared as far as requests report them, and every request ends with an answer or a correct refusal."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import BLOCK, ask, history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.pooling import Task
from coldproof.adapters.protocol.requests import ResponseOptions, Stage
from coldproof.adapters.protocol.shape import GroupShape
from coldproof.harness.history.records import Identity, Outcome, QueueSample
from coldproof.harness.judgement.checkers.cached_tokens import check_accounting
from coldproof.harness.judgement.checkers.liveness import check_liveness
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import judge_again
from coldproof.harness.judgement.request_sizes import never_fits
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Burst, Meanwhile, Route, SetAdapter, Workload

PROMPT = range(100, 140)
LONG = range(60)
TINY = shape(max_model_tokens=64)


def accounting_findings(
    *outcomes: Outcome, grew: tuple[float, ...], preempted: tuple[int, ...] = (), **engine: Any
) -> list[Finding]:
    """Return the findings of a step for each request, in which the hit counter grows by these amounts.

    The steps in `preempted` had a preemption.
    """
    steps, counted, seen = [], 0.0, 0.0
    for i, growth in enumerate(grew):
        before = Metrics(hit_tokens=counted, preemptions=seen)
        counted, seen = counted + growth, seen + (i in preempted)
        steps.append(record(i, before=before, after=Metrics(hit_tokens=counted, preemptions=seen)))
    return check_accounting(history(*outcomes, steps=tuple(steps), shape=shape(**engine)), exclusive=True)


def with_count(number: int, cached: int | None = 32, **changes: Any) -> Outcome:
    """Return a request that reports this many cached tokens."""
    return outcome(number, PROMPT, cached_tokens=cached, **changes)


UNCOUNTED: list[dict[str, Any]] = [
    {"cached": None},
    {"cached": None, "aborted": Stage.DECODE},
    {"cached": None, "error": "HTTP 400", "refused": True},
]
EACH = {"options": ResponseOptions(answers=2)}


def test_the_counter_of_two_engines_with_one_tier_counts_both() -> None:
    """The requests report only what the first engine found."""
    assert accounting_findings(with_count(0), grew=(96,)) != []
    assert accounting_findings(with_count(0), grew=(96,), publishes_answers=False, second_tier=True) == []


@pytest.mark.parametrize("uncounted", [*UNCOUNTED, EACH])
def test_steps_are_compared_exactly_up_to_the_first_without_a_count(uncounted: dict[str, Any]) -> None:
    """An aborted or refused request reports no count, and each of several answers does its own lookup."""
    odd = with_count(2, **uncounted)
    assert accounting_findings(with_count(0), with_count(1), odd, with_count(3), grew=(32, 32, 40, 32)) == []
    (found,) = accounting_findings(with_count(0), with_count(1), odd, with_count(3), grew=(32, 64, 0, 0))
    assert found.failure_class is FailureClass.ACCOUNTING
    assert "reported 64 cached tokens in total, but the engine's hit counter grew by 96" in found.sentence


@pytest.mark.parametrize(("uncounted", "most"), [*[(changes, 40) for changes in UNCOUNTED], (EACH, 80)])
def test_a_request_without_a_count_can_have_hit_no_more_than_its_prompt(uncounted: dict[str, Any], most: int) -> None:
    """Each of several answers can have hit as much. Requests with a count are counted, whatever is between them."""
    for odd in (0, 1, 2):
        sent = [with_count(i, **(uncounted if i == odd else {})) for i in range(3)]
        allowed = [grew for grew in range(0, 200, 8) if not accounting_findings(*sent, grew=(0, 0, grew))]
        assert allowed == list(range(64, 64 + most + 1, 8)) if odd == 0 else set(allowed) <= {64, *range(64, 145, 8)}


def test_one_request_without_a_count_gives_its_step_a_range() -> None:
    """The step may be off by as much as that request can have hit."""
    burst_of_two = [with_count(0), with_count(1, cached=None, step=0, aborted=Stage.DECODE)]
    assert [grew for grew in (24, 32, 72, 80) if not accounting_findings(*burst_of_two, grew=(grew,))] == [32, 72]


def test_a_step_with_a_preemption_is_compared_as_far_as_the_engines_rule_is_known() -> None:
    """A preempted request is looked up again. One engine counts that separately, and another may count each lookup."""
    steps = (with_count(0), with_count(1), with_count(2))
    for grew, first_only, any_rule in (
        ((32, 32, 32), [], []),
        ((32, 39, 32), [], []),  # the reference cache allows 39 of these 40 tokens
        ((32, 64, 32), [1], []),
        ((32, 0, 32), [], []),
        ((32, 0, 24), [1], [1]),
        ((16, 64, 32), [1], [1]),
    ):
        for known, expected in ((True, first_only), (False, any_rule)):
            found = accounting_findings(*steps, grew=grew, preempted=(1,), counts_first_lookups=known)
            assert [1] * len(found) == expected, (grew, known)


def test_a_request_beside_a_preempted_one_is_compared_exactly() -> None:
    """This needs an engine that reports which request was preempted."""
    calm = with_count(1, step=0, preemptions=0, sent=0.0)
    for lost, grew in ((0, 64), (2, 71)):
        both = (with_count(0, preemptions=lost), calm)
        known = {"preempted": (0,), "counts_first_lookups": True}
        assert accounting_findings(*both, grew=(grew,), **known) == []
        assert len(accounting_findings(*both, grew=(grew + 1,), **known)) == 1
        assert len(accounting_findings(*both, grew=(31,), **known)) == 1


def test_a_step_may_make_up_for_the_count_of_another() -> None:
    """Only sums are compared, because an engine may publish a step's count with the next sample."""
    assert accounting_findings(with_count(0), with_count(1), grew=(0, 64)) == []


def lookup_findings(*outcomes: Outcome, grew: tuple[tuple[float, float], ...], **engine: Any) -> list[str]:
    """Return the sentences of the findings if hits and queries grow by these amounts, in a step for each request."""
    steps, hit, queried = [], 0.0, 0.0
    for i, (hits, queries) in enumerate(grew):
        before = Metrics(hit_tokens=hit, queried_tokens=queried)
        hit, queried = hit + hits, queried + queries
        steps.append(record(i, before=before, after=Metrics(hit_tokens=hit, queried_tokens=queried)))
    seen = history(*outcomes, steps=tuple(steps), shape=shape(**engine))
    return [found.sentence for found in check_accounting(seen, exclusive=True)]


@pytest.mark.parametrize(("queries", "wrong"), [(40, False), (32, False), (31, True), (0, True)])
def test_nothing_can_be_hit_that_was_not_looked_up(queries: float, wrong: bool) -> None:
    """This holds for any one step, whatever the other steps looked up, and for any rule."""
    found = lookup_findings(with_count(0, 0), with_count(1), grew=((0, 40), (32, queries)))
    assert bool(found) is wrong
    assert all("Step 1: the engine's hit counter grew by 32" in sentence for sentence in found)


@pytest.mark.parametrize(("queries", "wrong"), [(80, False), (79, True), (81, True), (40, True)])
def test_each_prompt_is_queried_once_if_that_is_the_rule(queries: float, wrong: bool) -> None:
    """The queried tokens are its length. Nothing is compared if the rule is another one or the cache is off."""
    steps = ((0.0, 40.0), (32.0, queries - 40))
    known = lookup_findings(with_count(0, 0), with_count(1), grew=steps, counts_first_lookups=True)
    assert bool(known) is wrong
    if wrong and queries > 72:
        assert known == [
            "Prompts of 80 tokens in total were looked up, but the engine's counter of queried tokens grew by "
            f"{queries:.0f}."
        ]
        assert lookup_findings(with_count(0, 0), with_count(1), grew=steps) == []
    off = {"counts_first_lookups": True, "prefix_caching": False}
    assert lookup_findings(with_count(0, 0), with_count(1, 0), grew=((0, 0), (0, 0)), **off) == []


@pytest.mark.parametrize(("task", "most"), [(Task.EMBED, 80), (Task.SCORE, 80), (Task.COSINE, 81)])
def test_the_text_beside_a_prompt_is_looked_up_too(task: Task, most: int) -> None:
    """A cosine compares two embeddings. No route for vectors reports a count."""
    vector = with_count(1, None, options=ResponseOptions(pooled=task))
    for queries, wrong in ((most, False), (most + 1, True)):
        grew = ((0.0, 40.0), (0.0, queries - 40.0))
        assert bool(lookup_findings(with_count(0, 0), vector, grew=grew, counts_first_lookups=True)) is wrong


@pytest.mark.parametrize(
    "odd", [{"options": ResponseOptions(prompt_logprobs=True)}, {"cached": None, "aborted": Stage.QUEUED}]
)
@pytest.mark.parametrize("queries", [0, 40])
def test_a_request_without_a_certain_lookup_may_be_counted_or_not(odd: dict[str, Any], queries: float) -> None:
    """A prompt with requested scores is computed, and a request that was aborted in the queue was never looked up."""
    sent = (with_count(0, 0), with_count(1, **{"cached": 0, **odd}))
    assert lookup_findings(*sent, grew=((0, 40), (0, queries)), counts_first_lookups=True) == []
    assert lookup_findings(*sent, grew=((0, 40), (0, 41)), counts_first_lookups=True) != []


def test_failed_loads_leave_a_step_without_an_upper_bound() -> None:
    """The request of a failed load is looked up again. The lower bound of the other requests still holds."""
    for grew, wrong in ((32, False), (999, False), (31, True)):
        steps = (
            record(0, before=Metrics(hit_tokens=0, failed_loads=0), after=Metrics(hit_tokens=0, failed_loads=1)),
            record(1, before=Metrics(hit_tokens=0, failed_loads=1), after=Metrics(hit_tokens=grew, failed_loads=1)),
        )
        assert bool(check_accounting(history(with_count(0), with_count(1), steps=steps), exclusive=True)) is wrong


def liveness_classes(*outcomes: Outcome, **changes: Any) -> list[FailureClass]:
    """Return the classes of the findings about the ends of these requests."""
    return [f.failure_class for f in check_liveness(history(*outcomes, **changes))]


def refused(**changes: Any) -> Outcome:
    """Return a refused request with a prompt of 60 tokens."""
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
def test_a_refusal_is_right_only_if_the_request_does_not_fit(
    answer: int, engine: Any, expected: list[FailureClass]
) -> None:
    """Prompt and answer count together, for the model and for the pool."""
    assert liveness_classes(refused(max_tokens=answer), shape=engine) == expected


@pytest.mark.parametrize(
    ("route", "overlapped", "expected"),
    [
        (Route.UNLOAD_LOAD, True, []),
        (Route.IN_PLACE, True, [FailureClass.API]),
        (Route.UNLOAD_LOAD, False, [FailureClass.API]),
    ],
    ids=["unloaded meanwhile", "replaced meanwhile", "another request's adapter"],
)
def test_a_name_without_an_adapter_may_be_refused(route: Route, overlapped: bool, expected: list[FailureClass]) -> None:
    """Between unload and load the name is unknown.

    A reload in place and another adapter's unload leave no such moment.
    """
    change = SetAdapter(name="tenant", content="B", path="files-B", route=route)
    busy = Burst(requests=(ask(adapter="tenant"),), meanwhile=Meanwhile(change=change, after_tokens=1))
    met = (Identity("digest-a", None), Identity("digest-b", None))[: 1 + overlapped]
    sent = refused(identities=met, adapter="digest-a")
    assert liveness_classes(sent, shape=shape(), workload=Workload((busy,))) == expected


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
    """An internal error, a hang and a crash are no refusals."""
    too_long = outcome(0, range(200), (), **{"error": "HTTP 500", **changes})
    assert liveness_classes(too_long, shape=TINY, engine_lost=lost) == [expected]


def test_an_answer_to_a_prompt_that_never_fits_is_an_api_failure() -> None:
    """The prompt was truncated, or the answer is another prompt's. An aborted request might have been refused."""
    too_long = outcome(0, range(64), (1, 2, 3))
    (found,) = check_liveness(history(too_long, shape=TINY))
    assert (found.failure_class, found.request) == (FailureClass.API, 0)
    assert "64 prompt tokens exceed the engine's limit" in found.sentence
    assert liveness_classes(outcome(0, range(63), (1,)), shape=TINY) == []
    assert liveness_classes(outcome(0, range(64), (), aborted=Stage.QUEUED), shape=TINY) == []


def test_no_answer_is_too_long_for_an_engine_that_tells_no_limit() -> None:
    """The limit is a guess then. A refusal of such a prompt is none of its faults either."""
    guessed = msgspec.structs.replace(TINY, limit_is_told=False)
    assert liveness_classes(outcome(0, range(64), (1, 2, 3)), shape=guessed) == []
    declined = outcome(0, range(65), (), error="HTTP 400", refused=True)
    assert liveness_classes(declined, shape=guessed) == liveness_classes(declined, shape=TINY) == []


def test_too_many_tokens_are_an_api_failure_if_no_cold_answer_shows_it() -> None:
    """Each of its answers counts. Elsewhere, the answer differs from the cold one."""
    longer = outcome(0, range(62), (1, 2, 3, 4), max_tokens=3)
    assert liveness_classes(longer, shape=TINY) == [FailureClass.API]
    assert liveness_classes(msgspec.structs.replace(longer, tokens=(), others=(longer.tokens,)), shape=TINY)
    assert liveness_classes(msgspec.structs.replace(longer, max_tokens=4), shape=TINY) == []
    assert liveness_classes(longer) == []


def test_an_aborted_request_needs_no_token() -> None:
    """Its client disconnected. A request that was not aborted and has no token is a failure."""
    assert liveness_classes(outcome(0, PROMPT, (), aborted=Stage.PREFILL, finish_reason=None)) == []
    assert liveness_classes(outcome(0, PROMPT, ())) == [FailureClass.API]


def test_a_stall_that_ended_by_itself_is_a_hang() -> None:
    """Every request was answered in the end, on a server that Coldproof did not stop."""
    queue = QueueSample(at=20.0, running=0, waiting=2, pool_usage=1.0)
    stalled = history(outcome(0, PROMPT), stalled=queue, engine_lost="no progress for 20 s")
    assert [f.failure_class for f in check_liveness(stalled)] == [FailureClass.HANG]


CHECKERS = ("liveness", "tokens", "response options", "bounds", "accounting", "concurrency", "order", "conservation")


@pytest.mark.parametrize("best", range(len(CHECKERS)))
def test_the_strongest_of_several_findings_is_reported(best: int) -> None:
    """An end ranks before an answer, and an answer before a count. Findings of one checker rank by request."""
    all_findings = [
        Finding(checker=checker, failure_class=FailureClass.API, sentence=f"{checker} {request}", request=request)
        for request in (7, 3, None)
        for checker in CHECKERS[best:][::-1]
    ]
    whole = judge_again(history(outcome(0, PROMPT, error="gone")), {}, Rule(exact=True), exclusive=True)
    for findings in (all_findings, all_findings[::-1]):
        worst = msgspec.structs.replace(whole, findings=tuple(findings)).worst()
        assert (worst.checker, worst.request) == (CHECKERS[best], None)
    requests = tuple(finding for finding in all_findings if finding.request is not None)
    assert msgspec.structs.replace(whole, findings=requests).worst().request == 3


def test_a_prompt_fits_by_the_blocks_of_the_groups_where_hits_end_inside_a_block() -> None:
    """It was called too long by the unit of hits, which is smaller than any block."""
    sizes = shape(block_size=4, pool_blocks=4, groups=(GroupShape(BLOCK), GroupShape(BLOCK, most_blocks=2)))
    assert not never_fits(history(shape=sizes), outcome(0, range(4 * BLOCK - 1)))
    assert never_fits(history(shape=sizes), outcome(0, range(4 * BLOCK)))
