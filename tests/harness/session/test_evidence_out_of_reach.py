"""A trial whose evidence its cell cannot show says why, and its budget knows."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.drawn_workloads import LIMITS

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.harness.judgement.counters import Evidence, Trait
from coldproof.harness.judgement.evidence.cache import Pressure, Reuse
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.session.system_under_test import SHARED, SystemUnderTest


@pytest.mark.parametrize(
    ("needed", "limits", "shared", "out_of_reach"),
    [
        (Pressure.PREEMPTIONS, "roomy", False, True),
        (Pressure.PREEMPTIONS, "tight", False, False),
        (Pressure.PREEMPTIONS, "unknown pool", False, False),
        (Reuse.COUNTED, "tight", True, True),
        (Reuse.COUNTED, "tight", False, False),
        (Reuse.REPEAT_HITS, "roomy", True, False),
    ],
)
def test_a_pool_that_nothing_fills_and_counters_of_all_clients_are_out_of_reach(
    needed: Evidence, limits: str, shared: bool, out_of_reach: bool
) -> None:
    """A pool of unknown size may be small, and what a trial has already is no obstacle."""
    counts = {Capability.CACHED_TOKENS: Support(present=True, evidence="seen")}
    sut = object.__new__(SystemUnderTest)
    sut.engines = cast(
        Any,
        SimpleNamespace(
            engine=SimpleNamespace(capabilities=counts),
            pool=SimpleNamespace(options=SimpleNamespace(shared=shared)),
        ),
    )
    sut.limits = LIMITS[limits]
    trial = Trial(Requirement("R-1", "title", (), (needed,)), "default", "statement", "test")
    sut.note_hints(trial)
    assert trial.out_of_reach is out_of_reach
    assert trial.hints.get(Trait.EXCLUSIVE) == (SHARED if shared else None)
    assert (Trait.SMALL_POOL in trial.hints) is (limits != "tight")
    trial.evidence[needed] = 1.0
    sut.note_hints(trial)
    assert not trial.out_of_reach
