"""Everything at once: the long-run workload, and the only one in which the mechanisms meet."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.mixed import mixed
from harness.lab import Lab
from harness.requirement import requirement

NEEDS = (
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.STREAMING,
)


@requirement(
    "MIXED-1",
    "everything at once",
    needs=NEEDS,
    shows=(Evidence.HITS, Evidence.TOGETHER),
    shows_where={
        Capability.POOL_USAGE: Evidence.IDLE_LOOKS,
        Capability.POOL_SIZE: Evidence.EVICTED,
        Capability.PREEMPTION_COUNTS: Evidence.PREEMPTIONS,
    },
    weight=4,  # a chapter of it is another requirement's whole example
)
@given(data=st.data())
def test_everything_at_once(lab: Lab, data: st.DataObject) -> None:
    """With chats, repeats, adapters, salts, evictions, preemptions, aborts and resets one behind the other, a
    conforming engine answers as cold, and between them holds nothing for anybody.

    Why it can break: each mechanism was tested alone. Oracle: cold start, the reference cache, the gauges after each
    chapter. Vacuous without hits; without evictions and preemptions, where the engine tells of those.
    """
    lab.check(data.draw(mixed(lab.grounds), label="workload"))
