"""Faults of queues, and of two simultaneous events: a workload of a few steps shows each."""

from __future__ import annotations

import pytest
from support.fault_workloads import FaultyEngines, alone, ask, assert_shown, steps, together
from support.nightly import with_samples

from coldproof.adapters.protocol.requests import Abort, Stage
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults.scheduling import collisions, queue_states
from coldproof.harness.workload.steps import Idle, Meanwhile, Reset, SetAdapter, Workload

pytestmark = pytest.mark.engine
DEFAULT, TIGHT = "default", "tight"

CASES: dict[str, tuple[str, Workload]] = {
    "negative-priorities-come-last": (
        "tight-priority",
        steps(together(*(ask((f"request {i}", 100), tokens=220, priority=-5 * i) for i in range(2)))),
    ),
    "two-long-prompts-in-the-queue-wait-for-each-other": (
        TIGHT,
        steps(together(*(ask((f"request {i}", 320)) for i in range(2)))),
    ),
    "a-queue-of-more-than-sixteen-loses-its-oldest": (
        TIGHT,
        steps(together(*(ask((f"request {i}", 20), tokens=2) for i in range(17)))),
    ),
    "a-resumed-request-needs-a-block-to-spare": (
        TIGHT,
        # The second one needs the whole pool when it resumes alone.
        steps(together(ask(("short", 20), tokens=30), ask(("long", 478), tokens=20))),
    ),
    "a-request-that-is-preempted-four-times-ends": (
        TIGHT,
        steps(together(*(ask((f"request {i}", 60), tokens=60 + 40 * i) for i in range(7)))),
    ),
    "an-abort-as-the-prefill-ends-frees-what-others-hold": (
        TIGHT,
        steps(
            together(
                ask(("head", 64), ("one", 5), tokens=120),
                ask(("head", 64), ("two", 5), tokens=20, abort=Abort(after_tokens=1)),
                ask(("flood", 470), tokens=8, offset_ms=60),
            )
        ),
    ),
    "an-aborted-request-that-was-preempted-resumes": (
        TIGHT,
        # The long prompt is preempted in prefill, when the short ones need their third blocks.
        steps(
            together(
                *(ask((f"request {i}", 60), tokens=40) for i in range(4)),
                ask(("long", 250), offset_ms=40, abort=Abort(at=Stage.PREEMPTED)),
            ),
            Idle(20),
        ),
    ),
    "a-reset-that-overlaps-a-load-is-skipped": (
        DEFAULT,
        steps(alone(("stem", 70)), SetAdapter(name="tenant", content="A", path="files"), Reset(), alone(("stem", 70))),
    ),
    "a-reset-after-a-refused-one-does-nothing": (
        DEFAULT,
        steps(
            together(ask(("stem", 70), tokens=20), meanwhile=Meanwhile(change=Reset(), after_tokens=5)),
            Reset(),
            alone(("stem", 70)),
        ),
    ),
    "a-reset-of-running-requests-forgets-the-preempted": (
        TIGHT,
        steps(
            together(
                *(ask((f"request {i}", 100), tokens=220) for i in range(2)),
                meanwhile=Meanwhile(change=Reset((ResetScope.RUNNING,)), after_tokens=180),
            )
        ),
    ),
    "a-block-that-lacks-one-token-is-published": (
        TIGHT,
        # Beside a decoding request, the first chunk has 63 tokens.
        steps(
            together(
                ask(("busy", 20), tokens=30),
                ask(("stem", 200), offset_ms=50, abort=Abort(after_ms=10, at=Stage.PREFILL)),
            ),
            alone(("stem", 200)),
        ),
    ),
    "a-request-preempted-within-its-answer-goes-on-there": (
        "tight-priority",
        # Chunks of at most 24 tokens: computing an answer again takes many steps.
        steps(
            together(
                ask(("request 0", 40), tokens=260),
                ask(("request 1", 30), tokens=90),
                ask(("request 2", 20), tokens=200, priority=5),
                ask(("request 3", 20), tokens=160),
                ask(("request 4", 40), tokens=90, priority=5),
            )
        ),
    ),
}


@pytest.mark.parametrize("fault", with_samples(CASES, "a-queue-of-more-than-sixteen-loses-its-oldest"))
def test_a_few_steps_show_the_fault(engines: FaultyEngines, fault: str) -> None:
    """The unmodified engine conforms on the same workload."""
    cell, workload = CASES[fault]
    assert_shown(engines, fault, CELLS[cell], workload)


def test_every_fault_has_a_workload() -> None:
    """Every fault of these mechanisms has a workload."""
    mechanisms = (queue_states, collisions)
    assert {fault for mechanism in mechanisms for fault in mechanism.FAULTS} <= set(CASES)
