"""Everything at once: the workload for long runs, and the only one that combines all mechanisms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.crossed.workloads import of_every_feature
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.mixed.workloads import mixed
from coldproof.harness.judgement.collect import ACTING
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


@requirement(
    "MIXED-2",
    "several features at once",
    needs=(*NEEDS, Capability.CACHED_TOKENS, Capability.SEVERAL_FEATURES),
    suits=("features crossed",),
    shows=(Requests.HITS,),
    shows_where=ACTING,
    weight=2,  # many kinds of workloads
    upstream=("vllm#51614", "vllm#51094", "vllm#45414"),
)
@given(data=st.data())
def test_several_features_at_once(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With any of its features on at once, such as a second tier, layers with states, drafts, images and KV events, a
    conforming engine answers as cold, hits what it must, and publishes what it does.

    Why it can break: each feature is right where it was tested, which is alone: a tier of a model with several kinds of
    layers publishes the hashes of one kind for all (vllm#51614), or loads a state of another position (vllm#51094).
    Oracle: cold start, the reference cache, the KV events. Vacuous without hits, and unless each of these features that
    is on has acted: loads from the second tier and from what is behind it, limits on what is stored there, hits into
    images and embedding rows, accepted drafts, KV events.
    """
    sut.check(data.draw(of_every_feature(sut.limits, ACTING), label="workload"))
