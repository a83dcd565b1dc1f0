"""Requests of every kind get priorities if the engine has them, and nothing else of a workload changes."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st
from support.drawn_workloads import SLOW, limits, requests_of
from support.histories import ask, burst

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.workload.generators.priorities import prioritised, replaced, with_priorities
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.generators.reuse import repeats
from coldproof.harness.workload.steps import Idle, Workload

CHEAP = msgspec.structs.replace(limits(pool=100_000), rare=True)
SEARCH = settings(max_examples=500, deadline=None, database=None, phases=[Phase.generate])
PLAIN = Workload((burst(ask(), ask()), Idle(20), burst(ask(("turn", 5), continues=0))))


def priorities(workload: Workload) -> list[int]:
    """Return the priorities of the requests."""
    return [one.priority for one in requests_of(workload)]


@pytest.mark.parametrize(
    "wanted",
    [
        lambda found: max(found) < 0,
        lambda found: min(found) > 0,
        lambda found: min(found) < 0 < max(found),
        lambda found: len(set(found)) < len(found) and any(found),
        lambda found: not any(found),
    ],
    ids=["negative", "positive", "of both signs", "some equal", "none"],
)
def test_priorities_of_both_signs_are_drawn(wanted: object) -> None:
    """They may be equal for all requests, or differ."""
    find(prioritised(st.just(PLAIN)), lambda one: wanted(priorities(one)), settings=SEARCH)  # type: ignore[operator]


@settings(max_examples=50, deadline=None, database=None, suppress_health_check=SLOW)
@given(drawn=prioritised(st.just(PLAIN)))
def test_nothing_else_changes(drawn: Workload) -> None:
    """Steps and prompts stay the same."""
    assert replaced(drawn, iter([0] * 3)) == PLAIN


def test_workloads_with_priorities_keep_them() -> None:
    """The generator of such a workload has chosen them."""
    chosen = Workload((burst(ask(priority=3), ask()),))

    @SEARCH
    @given(drawn=prioritised(st.just(chosen)))
    def check(drawn: Workload) -> None:
        assert drawn == chosen

    check()


@pytest.mark.parametrize(
    "on",
    [
        limits(pool=100_000),
        msgspec.structs.replace(CHEAP, can=CHEAP.can - {Capability.PRIORITY}),
        msgspec.structs.replace(CHEAP, scale=0.5),
    ],
    ids=["no rare states", "no priorities", "slow"],
)
def test_only_cheap_engines_with_priorities_get_them(on: WorkloadLimits) -> None:
    """Each generator adds priorities by itself if its limits allow rare states."""
    plain = st.just(PLAIN)
    assert with_priorities(plain, on) is plain
    find(repeats(CHEAP), lambda one: any(priorities(one)), settings=SEARCH)

    @settings(max_examples=50, deadline=None, database=None, suppress_health_check=SLOW)
    @given(drawn=repeats(on))
    def check(drawn: Workload) -> None:
        assert not any(priorities(drawn))

    check()
