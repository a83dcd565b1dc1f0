"""The precondition of all other requirements: a cold engine's answer does not depend on its batch."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.lora.workloads import mixed_bursts
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "prefix caching off"


@requirement(
    "GROUND-1",
    "alone and in any batch, caching off",
    needs=(Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.WITHOUT_CACHE),
    suits=(CellTrait.PLAIN, CellTrait.BATCHES),
    shows=(Adapters.TOGETHER,),
    shows_where={Capability.MIXED_ADAPTERS: Adapters.MIXED},
    upstream=("vllm#27034", "vllm#39146"),
)
@given(data=st.data())
def test_alone_and_in_any_batch(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With prefix caching off, a conforming engine answers a request the same alone and in any batch. A batch may mix
    base-model and adapter requests.

    Why it can break: a kernel call processes requests of different adapters together, and the rows without an adapter
    are a special case. Oracle: the same engine, one request at a time. Vacuous when no two requests ran concurrently
    or, on an engine that mixes them in a batch, when no base-model request ran beside an adapter's request. A failure
    is a fault of the engine, but not of its prefix cache; the other requirements then run without the mixtures that
    fail here.
    """
    sut.check_without_cache(data.draw(mixed_bursts(sut.limits, unique_salts=sut.unique_salts), label="workload"))
