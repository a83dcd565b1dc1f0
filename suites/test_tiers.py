"""A second KV tier (offload, connector): what the pool gives up or loses comes back from elsewhere, as it was."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.mixed import mixed
from harness.generators.preemption import crowds
from harness.generators.pressure import working_sets
from harness.generators.saved import restored_for_others, saved_and_restored
from harness.generators.tiers import aborted_loads, asked_back, evicted, partitions
from harness.lab import Lab
from harness.requirement import requirement

TIER = (
    Capability.SECOND_TIER,
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.CACHED_TOKENS,
    Capability.METRICS,
)
SAVED = (
    Capability.SAVED_STATE,
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.CACHED_TOKENS,
)
SIZED = (*TIER, Capability.BLOCK_SIZE, Capability.POOL_SIZE)


@requirement(
    "TIER-1",
    "evicted and loaded back",
    needs=SIZED,
    shows=(Evidence.LOADED_EVICTED,),
    upstream=("vllm#54193", "vllm#46951", "sglang#39830"),
)
@given(data=st.data())
def test_evicted_to_the_second_tier_and_loaded_back(lab: Lab, data: st.DataObject) -> None:
    """With a second KV tier a conforming engine answers as cold while the pool is far smaller than the working set, and
    evicted blocks are loaded back.

    Why it can break: a block is stored or loaded under another one's key, into another one's place, or before it was
    written (vllm#54193, vllm#46951, sglang#39830). Oracle: cold start, and the reference cache's upper bound for both
    tiers together. Vacuous when nothing was loaded that the pool had evicted.
    """
    lab.check(data.draw(st.one_of(evicted(lab.grounds), working_sets(lab.grounds)), label="workload"))


@requirement(
    "TIER-1",
    "pool emptied and asked again",
    needs=(*TIER, Capability.CACHE_RESET),
    shows=(Evidence.LOADED_RESET,),
    upstream=("vllm#46453", "LMCache#4247"),
)
@given(data=st.data())
def test_pool_emptied_and_asked_again(lab: Lab, data: st.DataObject) -> None:
    """So it does for prompts and conversations that go on after a cache reset has emptied the pool, or a prompt as
    large as the pool has flushed it.

    Why it can break: local and external hits are counted from different places, or a block's end is taken for a
    block (vllm#46453, LMCache#4247). Oracle: cold start, the reference cache. Vacuous when nothing was loaded after a
    reset.
    """
    lab.check(data.draw(asked_back(lab.grounds), label="workload"))


@requirement(
    "TIER-1",
    "saved under a name and restored",
    needs=SAVED,
    shows=(Evidence.RESTORED,),
    upstream=("llama.cpp#27052", "llama.cpp#26676"),
)
@given(data=st.data())
def test_saved_and_restored(lab: Lab, data: st.DataObject) -> None:
    """So it does for what it was told to save under a name, and to restore after others had taken its place.

    Why it can break: tokens and their KV are put back by two hands, into a place that held something else
    (llama.cpp#27052, llama.cpp#26676). Oracle: cold start, and the reference cache, by which a restore is worth what
    was there at its save. Vacuous when nothing was hit that only a restore can have brought back.
    """
    lab.check(data.draw(saved_and_restored(lab.grounds), label="workload"))


@requirement(
    "TIER-2",
    "preempted and resumed",
    needs=SIZED,
    shows=(Evidence.PREEMPTIONS, Evidence.LOADED),
    upstream=("vllm#29870", "vllm#46014", "LMCache#1969"),
)
@given(data=st.data())
def test_preempted_and_resumed_with_a_second_tier(lab: Lab, data: st.DataObject) -> None:
    """With a second KV tier, a request that was preempted and resumed is answered by a conforming engine as cold, and
    so are those that took its blocks or come after.

    Why it can break: a store still reads blocks that somebody else has by now (vllm PR#29870), and what a resumed
    request is told to load is never loaded (LMCache#1969). Oracle: cold start. Vacuous when nothing was preempted, or
    nothing loaded.
    """
    lab.check(data.draw(crowds(lab.grounds, afterwards=True), label="workload"))


@requirement(
    "TIER-3",
    "salts and adapters across tiers",
    needs=(*TIER, Capability.CACHE_SALT),
    shows=(Evidence.STALE_CHANCES, Evidence.LOADED),
    upstream=("vllm#53495", "vllm#54342", "vllm#51748", "LMCache#2878"),
)
@given(data=st.data())
def test_identities_across_tiers(lab: Lab, data: st.DataObject) -> None:
    """With a second KV tier a conforming engine never shares KV between different salts, adapters or adapter contents,
    whichever tier holds it.

    Why it can break: each tier makes its own key, and forgets what the pool's key has in it (vllm#53495, PR#54342,
    PR#51748). Oracle: cold start, and the reference cache's upper bound. Vacuous when no block of another identity lay
    ready, or nothing was loaded.
    """
    lab.check(data.draw(partitions(lab.grounds), label="workload"))


@requirement(
    "TIER-3",
    "adapters across a save and its restore",
    needs=(*SAVED, Capability.ADAPTER_CHOICE),
    shows=(Evidence.RESTORED_ELSE, Evidence.TELLING),
    upstream=("llama.cpp#26207",),
)
@given(data=st.data())
def test_adapters_across_a_save(lab: Lab, data: st.DataObject) -> None:
    """Nor does it for what was saved under one adapter, or none, and restored when requests are for another.

    Why it can break: what is saved are tokens and their KV, and not whose they are (a kin of llama.cpp#26207). Oracle:
    cold start, and the reference cache's upper bound. Vacuous when nobody of another identity asked for what a restore
    had just brought back.
    """
    lab.check(data.draw(restored_for_others(lab.grounds), label="workload"))


@requirement(
    "TIER-4",
    "loads that fail",
    needs=TIER,
    shows=(Evidence.FAILED_LOADS, Evidence.AFTER_FAILURE, Evidence.LOADED),
    upstream=("LMCache#3388", "vllm#49250", "vllm#45474"),
)
@given(data=st.data())
def test_loads_that_fail(lab: Lab, data: st.DataObject) -> None:
    """Where a load from the second tier fails, whole or in part, a conforming engine answers as cold or, where it is
    told to, ends that request with an error; nobody else is the wiser.

    Why it can break: blocks that were never filled stay published, or are taken for computed (LMCache#3388, vllm#49250,
    vllm#45474). Oracle: cold start; as many errors as loads failed. Vacuous when no load failed.
    """
    lab.check(
        data.draw(
            st.one_of(asked_back(lab.grounds), working_sets(lab.grounds), crowds(lab.grounds, afterwards=True)),
            label="workload",
        )
    )


@requirement(
    "TIER-5",
    "everything at once, with a second tier",
    needs=(*SIZED, Capability.STREAMING),
    shows=(Evidence.LOADED, Evidence.HITS, Evidence.IDLE_LOOKS, Evidence.TOGETHER, Evidence.PREEMPTIONS),
    weight=4,
)
@given(data=st.data())
def test_everything_at_once_with_a_second_tier(lab: Lab, data: st.DataObject) -> None:
    """With chats, repeats, adapters, salts, evictions, preemptions, aborts and resets one behind the other, and a
    second KV tier behind the pool, a conforming engine answers as cold, and between them holds nothing for anybody.

    Why it can break: a request may be preempted, aborted or overtaken by a reset while a store or a load of its blocks
    is under way. Oracle: cold start, the reference cache, the gauges after each chapter. Vacuous without loads and
    preemptions.
    """
    lab.check(data.draw(mixed(lab.grounds), label="workload"))


@requirement(
    "TIER-5",
    "clients that hang up during a load",
    needs=(*SIZED, Capability.STREAMING, Capability.ABORT),
    shows=(Evidence.LOADED, Evidence.AFTER_ABORT, Evidence.IDLE_LOOKS),
    upstream=("vllm#32255", "vllm#46283", "vllm#46240"),
)
@given(data=st.data())
def test_aborts_during_loads(lab: Lab, data: st.DataObject) -> None:
    """So it does where a client hangs up while its prompt is being loaded.

    Why it can break: the blocks are still being written when they are given back, or never given back (vllm#32255).
    Oracle: cold start, the gauges. Vacuous when nothing was loaded, or nobody came after an abort.
    """
    lab.check(data.draw(aborted_loads(lab.grounds), label="workload"))
