"""Two implementations of one part of an engine: the same workload on both, and the same counts."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.features.twins.evidence import Twins
from coldproof.harness.features.twins.workloads import run_twice
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest

AREA = "two implementations"


@requirement(
    "TWIN-1",
    "two implementations of one part",
    needs=(
        Capability.TOKEN_PROMPTS,
        Capability.TOKEN_OUTPUTS,
        Capability.STREAMING,
        Capability.CACHED_TOKENS,
        Capability.OTHER_IMPLEMENTATION,
    ),
    suits=("another implementation",),
    shows=(Twins.COMPARED, Twins.HITS),
    shows_where={Capability.KV_EVENTS: Twins.EVENTS},
)
@given(data=st.data())
def test_two_implementations_of_one_part(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Where an engine has two implementations of one part, such as two model runners, two queues or two algorithms for
    the hashes of blocks, the same workload hits as much with the one as with the other. The same requests are refused
    and preempted, and the same KV events are published.

    Why it can break: a fix is made in one of them, and the other one has few users. Oracle: the engine itself with the
    other implementation, started before it with the same files; and cold start for the answers of both. Vacuous when
    no request ran twice, or none hit anything with the other implementation.
    """
    sut.check(data.draw(run_twice(sut.limits), label="workload"))
