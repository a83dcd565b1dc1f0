"""Everything at once: the workload for long runs, and the only one that combines all mechanisms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.mixed.workloads import mixed
from coldproof.harness.judgement.evidence.cache import Pressure
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "all areas combined"
NEEDS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.STREAMING)


@requirement(
    "MIXED-1",
    "everything at once",
    needs=NEEDS,
    suits=(CellTrait.MIXTURES,),
    shows=(Requests.HITS, Adapters.TOGETHER),
    shows_where={
        Capability.POOL_USAGE: Pressure.IDLE_LOOKS,
        Capability.POOL_SIZE: Pressure.EVICTED,
        Capability.PREEMPTION_COUNTS: Pressure.PREEMPTIONS,
    },
    weight=4,  # each part of it is as long as a whole example of another requirement
)
@given(data=st.data())
def test_everything_at_once(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With chats, repeats, adapters, salts, evictions, preemptions, aborts and resets in one workload, a conforming
    engine answers as cold. While it is idle between them, it holds no block for any request.

    Why it can break: each mechanism was tested alone. Oracle: cold start, the reference cache, the gauges after each
    part. Vacuous without hits; and without evictions and preemptions, where the engine reports them.
    """
    sut.check(data.draw(mixed(sut.limits), label="workload"))
