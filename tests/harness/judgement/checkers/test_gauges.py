"""Resources are released after use and gauges must be plausible. Nothing is reported if a needed value is unknown."""

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


def history_with_gap(step: Step = GAP, **gauges: float | None) -> History:
    """Return a history of one request and a step, after which the gauges have these values."""
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
    """There is one finding for the gap, with all that is held."""
    (found,) = check_conservation(history_with_gap(**gauges), exclusive=True)
    assert (found.checker, found.failure_class) == ("conservation", FailureClass.ACCOUNTING)
    assert found.sentence.endswith(words)


@pytest.mark.parametrize("gauges", [{}, {"running": 0, "waiting": 0, "pool_usage": 0.0}, {"waiting": None}])
def test_an_engine_that_holds_nothing_or_has_no_gauge_is_no_finding(gauges: dict[str, float | None]) -> None:
    """An unknown gauge holds nothing."""
    assert check_conservation(history_with_gap(**gauges), exclusive=True) == []


@pytest.mark.parametrize("step", [burst(ask()), Reset(), put("A")])
def test_only_after_a_gap_must_nothing_be_held(step: Step) -> None:
    """After any other step, an engine may not have finished its bookkeeping yet."""
    assert check_conservation(history_with_gap(step, running=1, pool_usage=0.5), exclusive=True) == []


def test_an_engine_with_other_clients_gives_no_finding() -> None:
    """A crashed engine gives no finding either."""
    busy = history_with_gap(running=1, pool_usage=0.5)
    assert check_conservation(busy, exclusive=False) == []
    lost = history(outcome(0, LONG), workload=busy.workload, steps=busy.steps, engine_lost="gone")
    assert check_conservation(lost, exclusive=True) == []


def test_each_gap_is_checked() -> None:
    """A pool may leak only under some load."""
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
def test_what_earlier_runs_left_is_not_counted(before: dict[str, float], after: dict[str, float], held: Any) -> None:
    """Otherwise the finding would be in another run and could not be reproduced on a fresh engine."""
    seen = msgspec.structs.replace(history_with_gap(**after), left_over=Metrics(**before))
    found = [f.sentence for f in check_conservation(seen, exclusive=True)]
    assert [words.partition("still reports ")[2] for words in found] == ([f"{held}."] if held else [])


@pytest.mark.parametrize(
    ("first", "now", "left_over_value"),
    [(0.0, 0.25, 0.25), (None, 0.25, 0.25), (0.0625, 0.0625, None), (0.0625, 0.25, None), (0.0, 0.0, 0.0)],
)
def test_a_gauge_that_was_never_zero_is_not_forgiven(first: float, now: float, left_over_value: float) -> None:
    """A gauge with an impossible value has it on a fresh engine, too."""
    gauges = [Metrics(running=used, waiting=used, pool_usage=used) for used in (first, now)]
    left = left_over(*gauges)
    assert (left.running, left.waiting, left.pool_usage) == (left_over_value,) * 3


def gauge_findings(*usage: float | None, running: float | None = 2, prompt: range = LONG, **changes: Any) -> list[str]:
    """Return the sentences of the findings about a pool of 100 blocks with these usages during a burst."""
    samples = tuple(
        QueueSample(at=0.5 + i, running=running, waiting=0, pool_usage=used) for i, used in enumerate(usage)
    )
    facts: dict[str, Any] = {"tokens": tuple(tokens_at(0.2)), "sent": 0.0, "step": 0}
    sent = [outcome(i, prompt, **facts) for i in range(4)]
    rows = (record(0, after=changes.pop("after", Metrics()), queue=samples),)
    facts = {"workload": Workload((burst(*[ask()] * 4),)), "steps": rows, "shape": shape(pool_blocks=100)}
    return [f.sentence for f in check_gauge(history(*sent, **{**facts, **changes}))]


def test_a_gauge_that_never_rises_cannot_be_right() -> None:
    """Running requests hold blocks."""
    (sentence,) = gauge_findings(0.0, 0.0, 0.0)
    assert "In 3 samples, up to 2 requests were running" in sentence
    assert "reported a pool usage of zero" in sentence


PLAUSIBLE: dict[str, tuple[tuple[float | None, ...], dict[str, Any]]] = {
    "few samples": ((0.0, 0.0), {}),
    "rose once": ((0.0, 0.01, 0.0), {}),
    "no gauge": ((None, None, None), {}),
    "no request runs": ((0.0, 0.0, 0.0), {"running": 0}),
    "unknown number of running requests": ((0.0, 0.0, 0.0), {"running": None}),
    "unknown pool": ((0.0, 0.0, 0.0), {"shape": shape(pool_blocks=None)}),
    "rounded": ((0.0, 0.0, 0.0), {"shape": shape(pool_blocks=501)}),
    "lost": ((0.0, 0.0, 0.0), {"engine_lost": "gone"}),
}


@pytest.mark.parametrize("case", PLAUSIBLE)
def test_a_plausible_gauge_is_no_finding(case: str) -> None:
    """An unknown value is not zero, and in a large pool a small usage may be rounded to zero."""
    usage, changes = PLAUSIBLE[case]
    assert gauge_findings(*usage, **changes) == []


def test_requests_hold_little_before_their_second_token() -> None:
    """Some engines report requests as running before they hold blocks."""
    late = [outcome(i, LONG, tokens=tuple(tokens_at(9.0)), sent=0.0, step=0) for i in range(4)]
    samples = tuple(QueueSample(at=at, running=2, waiting=0, pool_usage=0.0) for at in (0.5, 1.0, 1.5))
    seen = history(
        *late,
        workload=Workload((burst(*[ask()] * 4),)),
        steps=(record(0, queue=samples),),
        shape=shape(pool_blocks=100),
    )
    assert check_gauge(seen) == []


def test_a_negative_usage_means_blocks_released_twice() -> None:
    """A sample or the end of a step may show it. A rounding error is no block."""
    for sentences in (gauge_findings(0.5, -0.0796), gauge_findings(after=Metrics(pool_usage=-0.0796))):
        (sentence,) = sentences
        assert "-7.96% of its pool in use: more blocks are free than exist" in sentence
    assert gauge_findings(after=Metrics(pool_usage=-1e-12)) == []
    assert gauge_findings(after=Metrics(pool_usage=-0.0796), left_over=Metrics(pool_usage=-0.0796)) == []
    assert gauge_findings(after=Metrics(pool_usage=-0.0796), left_over=Metrics(pool_usage=-0.01)) != []
    below = history_with_gap(pool_usage=-0.0796)
    assert check_conservation(below, exclusive=True) == []


def tokens_at(at: float) -> list[Token]:
    """Return the tokens of an answer that all came this many seconds after the request was sent."""
    return [msgspec.structs.replace(token, at=at) for token in tokens(1, 2, 3, 4)]
