"""Requests that lose their blocks half-way and come back: they and whoever meets their blocks answer as cold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.preemption import crowds
from harness.lab import Lab
from harness.requirement import requirement

NEEDS = (
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.BLOCK_SIZE,
    Capability.POOL_SIZE,
    Capability.METRICS,
    Capability.PREEMPTION_COUNTS,
)


@requirement(
    "PREEMPT-1",
    "preempted and resumed",
    needs=NEEDS,
    shows=(Evidence.PREEMPTIONS,),
    upstream=("LMCache#1969", "vllm#43569", "vllm#41190", "vllm#28558"),
)
@given(data=st.data())
def test_preempted_and_resumed(lab: Lab, data: st.DataObject) -> None:
    """A request that was preempted and resumed is answered by a conforming engine as cold, under each scheduling policy
    and chunk budget.

    Why it can break: what had been computed is looked up again and only partly found (LMCache#1969, vllm PR#43569,
    vllm#41190). Oracle: cold start. Vacuous when the engine counted no preemption.
    """
    lab.check(data.draw(crowds(lab.grounds, afterwards=False), label="workload"))


@requirement(
    "PREEMPT-2",
    "after a preemption",
    needs=NEEDS,
    shows=(Evidence.PREEMPTIONS, Evidence.AFTER_PREEMPTION),
    upstream=("vllm#37152", "kvcached#362", "ascend#14055"),
)
@given(data=st.data())
def test_whoever_comes_after_a_preemption(lab: Lab, data: st.DataObject) -> None:
    """So are the requests that took its blocks, and the ones that come after and hit either.

    Why it can break: a freed block keeps a hash that no longer says what is in it (vllm PR#37152, kvcached#362).
    Oracle: cold start. Vacuous when the engine counted no preemption, or nobody hit anything after one.
    """
    lab.check(data.draw(crowds(lab.grounds, afterwards=True), label="workload"))
