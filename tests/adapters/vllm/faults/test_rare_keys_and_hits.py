"""Faults of keys, adapters, hits and reports in rare states: a workload of a few steps reaches and shows each.

The suites may need many examples to draw such a state. So a fault that they miss can still be shown.
"""

from __future__ import annotations

import pytest
from support.fault_workloads import FaultyEngines, alone, ask, assert_shown, steps, together
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults.blocks import rare_hits
from coldproof.adapters.vllm.faults.content import adapter_states
from coldproof.adapters.vllm.faults.keys import rare_identities
from coldproof.adapters.vllm.faults.reporting import rare_reports
from coldproof.harness.workload.steps import Route, Segment, SetAdapter, Step, Workload

pytestmark = pytest.mark.engine
DEFAULT, TIGHT = "default", "tight"


def load(name: str, content: str, route: Route = Route.LOAD) -> SetAdapter:
    """Return a step that loads an adapter. Each content has its own path."""
    return SetAdapter(name=name, content=content, path=f"files-{content}", route=route)


def preempted(**more: str) -> tuple[Step, ...]:
    """Return two requests that outgrow the pool, then the prompt of the preempted one without its adapter or salt."""
    growing = [ask((f"request {i}", 100), tokens=220, **more) for i in range(2)]
    return together(*growing), alone(("request 1", 100))


CASES: dict[str, tuple[str, Workload]] = {
    "a-salt-that-extends-another-shares-its-key": (
        DEFAULT,
        steps(alone(("stem", 100), salt="red"), alone(("stem", 100), salt="red+tenant")),
    ),
    "long-salts-are-cut": (
        DEFAULT,
        steps(alone(("stem", 100), salt="x" * 64 + "1"), alone(("stem", 100), salt="x" * 64 + "2")),
    ),
    "adapter-numbers-have-four-bits": (
        DEFAULT,
        steps(
            load("tenant", "A"),
            alone(("stem", 100), adapter="tenant"),
            *(load("tenant", "AB"[i % 2], Route.UNLOAD_LOAD) for i in range(15)),
            load("tenant", "B", Route.UNLOAD_LOAD),
            alone(("stem", 100), adapter="tenant"),
        ),
    ),
    "a-first-block-that-decode-fills-has-no-salt": (
        DEFAULT,
        steps(alone(("stem", 20), tokens=40, salt="red"), alone(("turn", 5), continues=0)),
    ),
    "prompts-of-one-step-are-matched-by-tokens-alone": (
        DEFAULT,
        steps(
            load("tenant", "A"),
            alone(("stem", 100)),
            together(ask(("stem", 100)), ask(("stem", 100), adapter="tenant")),
        ),
    ),
    "every-sixteenth-hash-lacks-the-parent": (
        DEFAULT,
        steps(
            alone(("stem", 577)),
            alone(Segment("stem", 513, changed=0)),
            alone(Segment("stem", 577, changed=0)),
        ),
    ),
    "resumed-requests-hash-as-the-base-model": (TIGHT, steps(load("tenant", "A"), *preempted(adapter="tenant"))),
    "resumed-requests-hash-without-their-salt": (TIGHT, steps(*preempted(salt="red"))),
    "the-second-of-two-loads-without-a-request-is-lost": (
        DEFAULT,
        steps(load("tenant", "A"), load("tenant", "B", Route.IN_PLACE), alone(("stem", 100), adapter="tenant")),
    ),
    "an-adapter-that-lost-its-slot-returns-with-its-first-files": (
        DEFAULT,
        steps(
            load("tenant", "A"),
            load("tenant", "B", Route.IN_PLACE),
            alone(("stem", 40), adapter="tenant"),
            *(step for i in range(4) for step in (load(f"t{i}", "A"), alone((f"stem {i}", 40), adapter=f"t{i}"))),
            alone(("other", 40), adapter="tenant"),
        ),
    ),
    "a-single-block-of-a-long-prompt-is-no-hit": (
        DEFAULT,
        steps(alone(("head", 40), ("one", 200)), alone(("head", 40), ("two", 200))),
    ),
    "a-missing-last-block-counts-as-computed": (
        DEFAULT,
        steps(alone(("head", 96), ("one", 40)), alone(("head", 96), ("two", 40))),
    ),
    "a-steps-lookups-are-remembered-by-first-block": (
        DEFAULT,
        steps(
            alone(("head", 64), ("one", 64)),
            together(ask(("head", 64), ("one", 64), ("tail", 5)), ask(("head", 64), ("two", 100))),
        ),
    ),
    "prompts-longer-than-half-the-pool-are-not-kept": (TIGHT, steps(alone(("stem", 290)), alone(("stem", 290)))),
    "a-block-that-a-chunk-of-one-token-fills-is-not-published": (
        "small-chunks",
        # Chunks of the second prompt: 17, 23, 23 and 1 tokens.
        steps(together(ask(("other", 31)), ask(("stem", 64))), alone(("stem", 64), ("tail", 20))),
    ),
    "a-third-copy-is-not-reported": (
        "events-tight",
        steps(*[alone(("stem", 64), tokens=4)] * 3, alone(("flood", 500), tokens=4)),
    ),
    "two-copies-stored-in-one-step-are-reported-once": (
        "events-tight",
        steps(together(*[ask(("stem", 32), tokens=4)] * 2), alone(("flood", 500), tokens=4)),
    ),
    "the-parent-is-missing-after-a-hit-of-one-block": (
        "events",
        steps(alone(("head", 40), ("one", 100)), alone(("head", 40), ("two", 100))),
    ),
    "hits-are-reported-modulo-sixteen-blocks": (DEFAULT, steps(*[alone(("stem", 520))] * 2)),
    "the-gauge-counts-a-shared-block-for-each-holder": (
        TIGHT,
        steps(together(ask(("stem", 70), tokens=20), ask(("stem", 70), offset_ms=50))),
    ),
}


@pytest.mark.parametrize("fault", with_samples(CASES, "the-parent-is-missing-after-a-hit-of-one-block"))
def test_a_few_steps_show_the_fault(engines: FaultyEngines, fault: str) -> None:
    """The unmodified engine conforms on the same workload."""
    cell, workload = CASES[fault]
    assert_shown(engines, fault, CELLS[cell], workload)


def test_every_fault_has_a_workload() -> None:
    """Every fault of these mechanisms has a workload."""
    mechanisms = (rare_identities, adapter_states, rare_hits, rare_reports)
    assert {fault for mechanism in mechanisms for fault in mechanism.FAULTS} <= set(CASES)
