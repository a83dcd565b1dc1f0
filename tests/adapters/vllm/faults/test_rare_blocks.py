"""Faults of shared blocks, old engines, groups and tiers in rare states: a workload of a few steps shows each."""

from __future__ import annotations

import pytest
from support.fault_workloads import FaultyEngines, alone, ask, assert_shown, steps, together
from support.nightly import with_samples

from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import PauseMode
from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults.blocks import ageing, sharers
from coldproof.adapters.vllm.faults.content import group_states
from coldproof.adapters.vllm.faults.tiers import rare_transfers
from coldproof.harness.workload.steps import (
    START_WEIGHTS,
    Idle,
    Meanwhile,
    Pause,
    Reset,
    Resume,
    Step,
    UpdateWeights,
    Workload,
)

pytestmark = pytest.mark.engine
DEFAULT, TIGHT = "default", "tight"


def update(version: str) -> tuple[Step, ...]:
    """Return steps that load new weights in a pause that clears the cache."""
    return Pause(mode=PauseMode.KEEP, clear=True), UpdateWeights(version=version), Resume()


CASES: dict[str, tuple[str, Workload]] = {
    "the-seventeenth-sharer-gets-an-empty-copy": (DEFAULT, steps(together(*[ask(("stem", 70))] * 18))),
    "one-evicted-copy-of-three-stays-in-the-index": (
        TIGHT,
        # Each of the three has computed its last block itself. The flood takes the first of these copies only.
        steps(*[alone(("stem", 64))] * 3, alone(("flood", 400), tokens=4), alone(("stem", 64), ("tail", 40))),
    ),
    "duplicates-that-decode-fills-are-freed": (
        TIGHT,
        steps(together(*[ask(("stem", 40), tokens=60)] * 2, ask(("flood", 300), tokens=60))),
    ),
    "two-holders-that-end-in-one-step-leak-what-they-share": (
        TIGHT,
        steps(together(*[ask(("stem", 70))] * 2), Idle(20)),
    ),
    "a-preemption-frees-what-one-other-request-holds": (
        TIGHT,
        steps(
            together(
                ask(("growing", 100), tokens=215),
                ask(("head", 64), ("one", 10), tokens=175),
                ask(("head", 64), ("two", 130), tokens=100),
            )
        ),
    ),
    "hits-of-answers-of-one-token-are-not-held": (
        TIGHT,
        # The long request needs a block in the second step of the short one, and takes one that this one has hit.
        steps(
            alone(("stem", 96), ("tail", 64), tokens=1),
            together(ask(("growing", 340), tokens=40), ask(("stem", 96), ("other", 64), tokens=1, offset_ms=170)),
        ),
    ),
    "generations-of-blocks-have-two-bits": (
        TIGHT,
        steps(
            alone(("stem", 70), tokens=4),
            *(alone((f"flood {i}", 500), tokens=4) for i in range(4)),
            alone(("stem", 70), tokens=4),
        ),
    ),
    "resets-are-counted-modulo-four": (DEFAULT, steps(alone(("stem", 70)), *[Reset()] * 4, alone(("stem", 70)))),
    "every-fifth-preemption-begins-the-answer-again": (
        TIGHT,
        steps(*(together(*(ask((f"request {n} {i}", 100), tokens=220) for i in range(3))) for n in range(3))),
    ),
    "every-hundredth-request-publishes-nothing": (DEFAULT, steps(*[alone(("stem", 70), tokens=1)] * 101)),
    "the-hit-counter-stops-at-65535": (DEFAULT, steps(*[alone(("stem", 70), tokens=1)] * 6)),
    "every-second-pause-clears-nothing": (
        DEFAULT,
        steps(
            *update("A"),
            alone(("stem", 70)),
            *update(START_WEIGHTS),
            alone(("stem", 70)),
            *update("A"),
            alone(("stem", 70)),
        ),
    ),
    "a-window-in-use-is-hit-without-being-held": (
        "groups-window-tight",
        steps(
            together(
                ask(("stem", 130), tokens=60),
                ask(("stem", 130), tokens=1, offset_ms=50),
                *(ask((f"flood {i}", 480), tokens=8, offset_ms=70) for i in range(3)),
            )
        ),
    ),
    "a-preemption-loses-a-block-of-the-second-group": (
        "groups-window-tight",
        steps(together(*(ask((f"request {i}", 250), tokens=240) for i in range(4))), Idle(20)),
    ),
    "a-block-leaves-its-window-a-token-early": (
        "groups-window-tight",
        # The first request moves the ends of the chunks, and all three fill the pool.
        steps(together(ask(("busy", 60), tokens=60), *(ask((f"flood {i}", 480)) for i in range(2)))),
    ),
    "a-reset-of-the-tier-keeps-what-is-being-stored": (
        "tier-offload",
        steps(
            together(
                ask(("busy", 40), tokens=40),
                ask(("stem", 97), tokens=2),
                meanwhile=Meanwhile(change=Reset((ResetScope.RUNNING, ResetScope.SECOND_TIER)), after_tokens=2),
            ),
            alone(("stem", 97), tokens=4),
        ),
    ),
    "every-eighth-evicted-chunk-is-freed-twice": (
        "tier-offload-small",
        steps(*(alone((f"document {i}", 390), tokens=4) for n in range(3) for i in range(4))),
    ),
    "a-second-load-begins-where-the-first-did": (
        "tier-offload",
        steps(
            alone(("head", 97), tokens=4),
            together(
                ask(("growing", 200), tokens=280),
                ask(("head", 97), ("own", 60), tokens=200),
            ),
        ),
    ),
    "a-failed-block-is-computed-again-for-its-first-user-only": (
        "tier-failing",
        steps(alone(("stem", 129)), Reset(), together(*[ask(("stem", 129))] * 2)),
    ),
}


@pytest.fixture(autouse=True)
def counters(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower the limit of the hit counter, because a workload of 65,535 hit tokens would take half a minute."""
    monkeypatch.setattr(ageing, "MOST_HITS", 255)


@pytest.mark.parametrize("fault", with_samples(CASES, "duplicates-that-decode-fills-are-freed"))
def test_a_few_steps_show_the_fault(engines: FaultyEngines, fault: str) -> None:
    """The unmodified engine conforms on the same workload."""
    cell, workload = CASES[fault]
    assert_shown(engines, fault, CELLS[cell], workload)


def test_every_fault_has_a_workload() -> None:
    """Every fault of these mechanisms has a workload."""
    mechanisms = (sharers, ageing, group_states, rare_transfers)
    assert {fault for mechanism in mechanisms for fault in mechanism.FAULTS} <= set(CASES)
