"""The engine's counter bounds hits that no request reports, and no other increase is taken for a hit."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import history, outcome, record, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.history.records import History
from coldproof.harness.judgement.checkers.uncounted_hits import check_uncounted_hits
from coldproof.harness.schema.verdict import FailureClass

PROMPT = tuple(range(33, 73))  # two whole blocks of 16, and more
ONCE = shape(counts_first_lookups=True)


def history_of(*growth: float, salts: tuple[str | None, ...] = (), **changes: Any) -> History:
    """Return a history with the same prompt in each step and no reported counts.

    The engine's counter grows by `growth` in the steps.
    """
    steps, total = [], 0.0
    for place, more in enumerate(growth):
        steps.append(record(place, before=total, after=total + more))
        total += more
    salted = (*salts, *(None,) * len(growth))
    sent = [outcome(i, PROMPT, salt=salted[i], cached_tokens=None) for i in range(len(growth))]
    return history(*sent, steps=tuple(steps), **{"shape": ONCE, **changes})


@pytest.mark.parametrize(
    ("growth", "salts", "found"),
    [
        ((0, 32), (None, None), False),
        ((0, 0), (None, None), False),  # lost reuse is another check
        ((0, 32), ("red", None), True),
        ((0, 32), ("red", "Red"), True),
        ((0, 48), (None, None), True),  # the prompt has two whole blocks
        ((0, 0, 64), (None, None, None), False),  # published one step late
        ((0, 32, 32), ("red", "red", None), True),
        ((16, 0), (None, None), True),
    ],
)
def test_the_counter_may_grow_by_what_requests_may_hit(
    growth: tuple[float, ...], salts: tuple[str | None, ...], found: bool
) -> None:
    """Whole blocks count, and sums from the first step on."""
    findings = check_uncounted_hits(history_of(*growth, salts=salts), exclusive=True)
    assert [one.failure_class for one in findings] == [FailureClass.ACCOUNTING] * found


def test_the_first_step_is_named() -> None:
    """The sentence has both numbers."""
    (found,) = check_uncounted_hits(history_of(0, 32, 32, salts=("red", "red", None)), exclusive=True)
    assert found.sentence.startswith("Up to step 2, the engine's hit counter grew by 64 tokens")
    assert "may have hit 32 at most" in found.sentence


HIT_ACROSS_SALTS = history_of(0, 32, salts=("red", None))


@pytest.mark.parametrize(
    "changes",
    [
        {"outcomes": tuple(outcome(i, PROMPT, salt=s, cached_tokens=0) for i, s in enumerate(("red", None)))},
        {"steps": (record(0, before=None, after=None), record(1, before=None, after=None))},
        {"steps": (record(0), record(1, after=Metrics(hit_tokens=32, failed_loads=1)))},
    ],
    ids=["reports counts", "no counter", "a failed load"],
)
def test_a_counter_that_proves_nothing_gives_no_finding(changes: dict[str, Any]) -> None:
    """The same holds for an engine that others use."""
    assert check_uncounted_hits(HIT_ACROSS_SALTS, exclusive=True)
    assert check_uncounted_hits(msgspec.structs.replace(HIT_ACROSS_SALTS, **changes), exclusive=True) == []
    assert check_uncounted_hits(HIT_ACROSS_SALTS, exclusive=False) == []


@pytest.mark.parametrize(("together", "preempted"), [(False, False), (True, False), (False, True)])
def test_an_engine_that_counts_every_lookup_is_judged_while_nothing_waits(together: bool, preempted: bool) -> None:
    """A single request is looked up once, unless it is preempted."""
    seen = msgspec.structs.replace(HIT_ACROSS_SALTS, shape=shape())
    if together:
        seen = msgspec.structs.replace(seen, outcomes=(*seen.outcomes, outcome(2, PROMPT, step=1)))
    if preempted:
        last = record(1, before=Metrics(hit_tokens=0, preemptions=0), after=Metrics(hit_tokens=32, preemptions=1))
        seen = msgspec.structs.replace(seen, steps=(seen.steps[0], last))
    assert bool(check_uncounted_hits(seen, exclusive=True)) is not (together or preempted)


def test_an_engine_that_keeps_partial_blocks_may_hit_them() -> None:
    """If layers are of several kinds, hits have another unit."""
    seen = history_of(0, 39, shape=msgspec.structs.replace(ONCE, uniform=False))
    assert check_uncounted_hits(seen, exclusive=True) == []
