"""Preemption: requests that are preempted and resumed, and requests that use their blocks, are answered as cold."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.rare import with_rare

AREA = "preemption"
SIZED = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.BLOCK_SIZE, Capability.POOL_SIZE)
NEEDS = (*SIZED, Capability.METRICS, Capability.PREEMPTION_COUNTS)


@requirement(
    "PREEMPT-1",
    "preempted and resumed",
    needs=NEEDS,
    suits=(CellTrait.PREEMPTION, CellTrait.WHOLE_PROMPTS, CellTrait.GROUPS_SMALL_POOL),
    shows=(Pressure.PREEMPTIONS,),
    upstream=("LMCache#1969", "vllm#43569", "vllm#41190", "vllm#28558"),
)
@given(data=st.data())
def test_preempted_and_resumed(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers a request as cold that was preempted and resumed, with each scheduling policy and
    chunk budget.

    Why it can break: what had been computed is looked up again and only partly found (LMCache#1969, vllm PR#43569,
    vllm#41190). Oracle: cold start. Vacuous when the engine counted no preemption.
    """
    usual = outgrowing_requests(sut.limits, afterwards=False)
    sut.check(data.draw(with_rare(sut.limits, usual, pressed(sut.limits, outgrow=True)), label="workload"))


@requirement(
    "PREEMPT-2",
    "after a preemption",
    needs=NEEDS,
    suits=(CellTrait.PREEMPTION,),
    shows=(Pressure.PREEMPTIONS, Pressure.AFTER_PREEMPTION),
    upstream=("vllm#37152", "kvcached#362", "ascend#14055"),
)
@given(data=st.data())
def test_requests_after_a_preemption(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers as cold the requests that took the blocks of a preempted request, and the later
    requests that hit blocks of either.

    Why it can break: a freed block keeps a hash that no longer describes its content (vllm PR#37152, kvcached#362).
    Oracle: cold start. Vacuous when the engine counted no preemption, or no request hit anything after one.
    """
    usual = outgrowing_requests(sut.limits, afterwards=True)
    sut.check(data.draw(with_rare(sut.limits, usual, pressed(sut.limits, outgrow=True)), label="workload"))
