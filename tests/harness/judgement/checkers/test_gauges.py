"""What is over is given back, and gauges can be right; nothing is said where nothing is known."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import ask, burst, history, outcome, put, record, shape, tokens

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Token
from coldproof.harness.execution.engines.cell_engines import left_over
from coldproof.harness.features.pressure.checks import check_conservation, check_gauge
from coldproof.harness.history.records import History, QueueSample
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.workload.steps import Idle, Reset, Step, Workload

LONG = range(100, 180)  # five whole blocks of 16


GAP = Idle(50)


def rested(step: Step = GAP, **gauges: float | None) -> History:
    """One request, then a step after which the gauges said this."""
    steps = (record(0), record(1, after=Metrics(**gauges)))
    return history(outcome(0, LONG), workload=Workload((burst(ask()), step)), steps=steps)


@pytest.mark.parametrize(
    ("gauges", "words"),
    [
        ({"running": 2, "waiting": 0, "pool_usage": 0.0}, "still reports 2 requests running."),
        ({"running": 0, "waiting": 1, "pool_usage": 0.0}, "still reports 1 requests waiting."),
        ({"running": 0, "waiting": 0, "pool_usage": 0.0625}, "still reports 6.25% of the pool in use."),
        (
            {"running": 1, "waiting": 2, "pool_usage": 0.5},
            "still reports 1 requests running and 2 requests waiting and 50.00% of the pool in use.",
        ),
    ],
)
def test_whatever_is_held_after_a_gap_is_a_finding(gauges: dict[str, float], words: str) -> None:
    """One for the gap, with all that is held."""
    (found,) = check_conservation(rested(**gauges), exclusive=True)
    assert (found.checker, found.failure_class) == ("conservation", FailureClass.ACCOUNTING)
    assert found.sentence.endswith(words)


@pytest.mark.parametrize("gauges", [{}, {"running": 0, "waiting": 0, "pool_usage": 0.0}, {"waiting": None}])
def test_an_engine_that_holds_nothing_or_does_not_tell_is_no_finding(gauges: dict[str, float | None]) -> None:
    """Unknown is not held."""
    assert check_conservation(rested(**gauges), exclusive=True) == []


@pytest.mark.parametrize("step", [burst(ask()), Reset(), put("A")])
def test_only_after_a_gap_must_nothing_be_held(step: Step) -> None:
    """An engine may finish its bookkeeping first."""
    assert check_conservation(rested(step, running=1, pool_usage=0.5), exclusive=True) == []


def test_what_others_hold_is_not_held_against_an_engine() -> None:
    """Nor is anything once it is gone."""
    busy = rested(running=1, pool_usage=0.5)
    assert check_conservation(busy, exclusive=False) == []
    lost = history(outcome(0, LONG), workload=busy.workload, steps=busy.steps, engine_lost="gone")
    assert check_conservation(lost, exclusive=True) == []


def test_each_gap_is_looked_at() -> None:
    """A pool that leaks a little in every storm."""
    steps = (record(0, after=Metrics(pool_usage=0.1)), record(1, after=Metrics(pool_usage=0.2)))
    leaking = history(workload=Workload((Idle(1), Idle(1))), steps=steps)
    assert ["Step 0" in f.sentence for f in check_conservation(leaking, exclusive=True)] == [True, False]


@pytest.mark.parametrize(
    ("before", "after", "held"),
    [
        ({"pool_usage": 0.25}, {"pool_usage": 0.25}, None),
        ({"pool_usage": 0.25}, {"pool_usage": 0.125}, None),
        ({"pool_usage": 0.25}, {"pool_usage": 0.5}, "50.00% of the pool in use (25.00% before this run)"),
        ({"running": 1}, {"running": 1, "waiting": 0}, None),
        ({"running": 1}, {"running": 2}, "2 requests running"),
        ({"waiting": 1}, {"waiting": 1, "running": 1}, "1 requests running"),
        ({}, {"pool_usage": 0.25}, "25.00% of the pool in use"),
    ],
)
def test_what_earlier_runs_left_behind_is_theirs(before: dict[str, float], after: dict[str, float], held: Any) -> None:
    """Or the first run that looks would be blamed, and could not be repeated on an engine of its own."""
    seen = msgspec.structs.replace(rested(**after), left_over=Metrics(**before))
    found = [f.sentence for f in check_conservation(seen, exclusive=True)]
    assert [words.partition("still reports ")[2] for words in found] == ([f"{held}."] if held else [])


@pytest.mark.parametrize(
    ("first", "now", "forgiven"),
    [(0.0, 0.25, 0.25), (None, 0.25, 0.25), (0.0625, 0.0625, None), (0.0625, 0.25, None), (0.0, 0.0, 0.0)],
)
def test_an_engine_that_never_rested_has_left_nothing_over(first: float, now: float, forgiven: float) -> None:
    """A gauge that counts what nobody can have says so on a fresh engine, too."""
    gauges = [Metrics(running=used, waiting=used, pool_usage=used) for used in (first, now)]
    left = left_over(*gauges)
    assert (left.running, left.waiting, left.pool_usage) == (forgiven,) * 3


def worked(*usage: float | None, running: float | None = 2, prompt: range = LONG, **changes: Any) -> list[str]:
    """What is said of an engine whose pool of 100 blocks was seen like this while a burst ran."""
    looks = tuple(QueueSample(at=0.5 + i, running=running, waiting=0, pool_usage=used) for i, used in enumerate(usage))
    facts: dict[str, Any] = {"tokens": tuple(first_at(0.2)), "sent": 0.0, "step": 0}
    asked = [outcome(i, prompt, **facts) for i in range(4)]
    rows = (record(0, after=changes.pop("after", Metrics()), queue=looks),)
    facts = {"workload": Workload((burst(*[ask()] * 4),)), "steps": rows, "shape": shape(pool_blocks=100)}
    return [f.sentence for f in check_gauge(history(*asked, **{**facts, **changes}))]


def test_a_gauge_that_never_rises_cannot_be_right() -> None:
    """Whoever runs holds blocks."""
    (said,) = worked(0.0, 0.0, 0.0)
    assert "In 3 samples, up to 2 requests were running" in said
    assert "reported a pool usage of zero" in said


QUIET: dict[str, tuple[tuple[float | None, ...], dict[str, Any]]] = {
    "few looks": ((0.0, 0.0), {}),
    "rose once": ((0.0, 0.01, 0.0), {}),
    "no gauge": ((None, None, None), {}),
    "nobody runs": ((0.0, 0.0, 0.0), {"running": 0}),
    "nobody is said to run": ((0.0, 0.0, 0.0), {"running": None}),
    "unknown pool": ((0.0, 0.0, 0.0), {"shape": shape(pool_blocks=None)}),
    "rounded": ((0.0, 0.0, 0.0), {"shape": shape(pool_blocks=501)}),
    "lost": ((0.0, 0.0, 0.0), {"engine_lost": "gone"}),
}


@pytest.mark.parametrize("calm", QUIET)
def test_a_gauge_that_may_be_right_is_believed(calm: str) -> None:
    """Unknown is not nothing, and in a large pool little may be rounded to nothing."""
    usage, changes = QUIET[calm]
    assert worked(*usage, **changes) == []


def test_nobody_holds_much_before_the_second_token() -> None:
    """Requests on their way in are said to run before they hold anything, by some engines."""
    late = [outcome(i, LONG, tokens=tuple(first_at(9.0)), sent=0.0, step=0) for i in range(4)]
    looks = tuple(QueueSample(at=at, running=2, waiting=0, pool_usage=0.0) for at in (0.5, 1.0, 1.5))
    seen = history(
        *late,
        workload=Workload((burst(*[ask()] * 4),)),
        steps=(record(0, queue=looks),),
        shape=shape(pool_blocks=100),
    )
    assert check_gauge(seen) == []


def test_less_than_nothing_in_use_means_blocks_given_back_twice() -> None:
    """At a look or behind a step; rounding is no block."""
    for said in (worked(0.5, -0.0796), worked(after=Metrics(pool_usage=-0.0796))):
        assert ["-7.96% of its pool in use: more blocks are free than exist" in words for words in said] == [True]
    assert worked(after=Metrics(pool_usage=-1e-12)) == []
    assert worked(after=Metrics(pool_usage=-0.0796), left_over=Metrics(pool_usage=-0.0796)) == []
    assert worked(after=Metrics(pool_usage=-0.0796), left_over=Metrics(pool_usage=-0.01)) != []
    below = rested(pool_usage=-0.0796)
    assert check_conservation(below, exclusive=True) == []


def first_at(at: float) -> list[Token]:
    """An answer whose first token came so many seconds after it was asked for."""
    return [msgspec.structs.replace(token, at=at) for token in tokens(1, 2, 3, 4)]
