"""A second KV tier (offload, connector): what the pool evicts or loses comes back from the tier unchanged."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.lost_files.evidence import LostFiles
from coldproof.harness.features.lost_files.workloads import lost_between
from coldproof.harness.features.mixed.workloads import mixed
from coldproof.harness.features.preemption.workloads import outgrowing_requests
from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.features.pressure.workloads import working_sets
from coldproof.harness.features.saved_state.evidence import SavedState
from coldproof.harness.features.sides.evidence import Sides
from coldproof.harness.features.sides.failure_workloads import failing_tiers
from coldproof.harness.features.tiers.evidence import Tiers
from coldproof.harness.features.tiers.load_workloads import (
    aborted_loads,
    loaded_behind_hits,
    loaded_together,
    loads_by_share,
    preempted_after_loads,
    returning_crowd,
)
from coldproof.harness.features.tiers.restart_workloads import restarts_after_changes, restarts_without_changes
from coldproof.harness.features.tiers.workloads import (
    answers_that_fill_blocks,
    evicted_and_sent_again,
    partitions,
    read_from_behind,
    restored_for_others,
    saved_and_restored,
    sent_again_after_gaps,
)
from coldproof.harness.features.transfer_limits.evidence import TransferLimits
from coldproof.harness.features.transfer_limits.workloads import limited, with_some_limits
from coldproof.harness.judgement.evidence.cache import Control, Pressure
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.rare import with_rare

AREA = "second KV tier"
COUNTED = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
TIER = (Capability.SECOND_TIER, *COUNTED, Capability.METRICS)
SLOW = {Capability.SLOW_TIER: Tiers.LOADED_SLOW}  # what is behind the second tier is read, too
SAVED = (Capability.SAVED_STATE, *COUNTED)
SIZED = (*TIER, Capability.BLOCK_SIZE, Capability.POOL_SIZE)
LOAD_CELLS = (CellTrait.SECOND_TIER, "tier of groups")
KEEPING_CELLS = (*LOAD_CELLS, "saved states")
SMALLEST_CELLS = (*LOAD_CELLS, "tier behind seven blocks")
FAILING_CELLS = ("failing loads",)


@requirement(
    "TIER-1",
    "evicted and loaded back",
    needs=SIZED,
    suits=KEEPING_CELLS,
    shows=(Tiers.LOADED_EVICTED,),
    shows_where=SLOW,
    upstream=("vllm#54193", "vllm#46951", "sglang#39830", "vllm#53498"),
)
@given(data=st.data())
def test_evicted_to_the_second_tier_and_loaded_back(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With a second KV tier, a conforming engine answers as cold while the pool is far smaller than the working set and
    evicted blocks are loaded back. A tier that stores every prompt has all of them as long as it has room, and what the
    pool still has is hit there.

    Why it can break: a block is stored or loaded with another block's key, into another block's place, before it was
    written, or never (vllm#54193, vllm#46951, sglang#39830, vllm#53498). Oracle: cold start, and the reference cache's
    bounds for both tiers together. Vacuous when nothing was loaded that the pool had evicted.
    """
    kinds = (evicted_and_sent_again, working_sets, returning_crowd, answers_that_fill_blocks)
    usual = st.one_of(*(kind(sut.limits) for kind in kinds))
    if sut.can(Capability.SLOW_TIER):
        usual = with_rare(sut.limits, usual, read_from_behind(sut.limits))
    sut.check(data.draw(with_rare(sut.limits, usual, loaded_together(sut.limits), every=3), label="workload"))


@requirement(
    "TIER-1",
    "loaded behind a hit",
    needs=SIZED,
    suits=KEEPING_CELLS,
    shows=(Tiers.LOADED_BESIDE_HITS,),
    upstream=("vllm#33775", "vllm#44409"),
)
@given(data=st.data())
def test_loaded_behind_a_hit(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With a second KV tier, a conforming engine answers as cold when the pool has the beginning of a prompt, the rest
    is loaded, and other requests hold the pool.

    Why it can break: what is hit is not in use yet when blocks for the load are taken, so that they may be those that
    are hit, of the same group of layers or of another one (vllm#33775). Oracle: cold start, and the reference cache.
    Vacuous when no burst hit in the pool and loaded, too.
    """
    sut.check(data.draw(loaded_behind_hits(sut.limits), label="workload"))


@requirement(
    "TIER-1",
    "pool emptied, prompts sent again",
    needs=(*TIER, Capability.CACHE_RESET),
    suits=KEEPING_CELLS,
    shows=(Tiers.LOADED_RESET,),
    shows_where=SLOW,
    upstream=("vllm#46453", "LMCache#4247"),
)
@given(data=st.data())
def test_pool_emptied_and_prompts_sent_again(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With a second KV tier, a conforming engine answers as cold when prompts are sent again and conversations continue
    after the pool was emptied: by a cache reset, or by a prompt as large as the pool.

    Why it can break: local and external hits are counted from different positions, or a partly filled block is used as
    a whole one (vllm#46453, LMCache#4247). Oracle: cold start, the reference cache. Vacuous when nothing was loaded
    after a reset.
    """
    sut.check(data.draw(sent_again_after_gaps(sut.limits), label="workload"))


@requirement(
    "TIER-1",
    "saved under a name and restored",
    needs=SAVED,
    suits=KEEPING_CELLS,
    shows=(SavedState.RESTORED,),
    upstream=("llama.cpp#27052", "llama.cpp#26676"),
)
@given(data=st.data())
def test_saved_and_restored(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers as cold after it saved its cache under a name, other requests replaced the cached KV,
    and it restored the saved one.

    Why it can break: separate code restores the tokens and their KV, into a place that held something else
    (llama.cpp#27052, llama.cpp#26676). Oracle: cold start, and the reference cache, in which a restore brings back what
    was cached at the save. Vacuous when nothing was hit that only a restore can have brought back.
    """
    sut.check(data.draw(saved_and_restored(sut.limits), label="workload"))


@requirement(
    "TIER-2",
    "preempted and resumed",
    needs=SIZED,
    suits=SMALLEST_CELLS,
    shows=(Pressure.PREEMPTIONS, Tiers.LOADED),
    upstream=("vllm#29870", "vllm#46014", "LMCache#1969"),
)
@given(data=st.data())
def test_preempted_and_resumed_with_a_second_tier(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With a second KV tier, a conforming engine answers a request as cold that was preempted and resumed. It also
    answers as cold the requests that took its blocks and the requests that follow.

    Why it can break: a store still reads blocks that another request has by then (vllm PR#29870), or the blocks that a
    resumed request should load are never loaded (LMCache#1969). Oracle: cold start. Vacuous when no request was
    preempted, or nothing was loaded.
    """
    usual, rare = outgrowing_requests(sut.limits, afterwards=True), pressed(sut.limits, outgrow=True)
    sut.check(data.draw(with_rare(sut.limits, usual, rare), label="workload"))


@requirement(
    "TIER-3",
    "salts and adapters across tiers",
    needs=(*TIER, Capability.CACHE_SALT),
    suits=KEEPING_CELLS,
    shows=(Adapters.STALE_CHANCES, Tiers.LOADED),
    shows_where=SLOW,
    upstream=("vllm#53495", "vllm#54342", "vllm#51748", "LMCache#2878"),
)
@given(data=st.data())
def test_identities_across_tiers(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With a second KV tier, a conforming engine never shares KV between different salts, adapters or adapter contents,
    whichever tier holds it.

    Why it can break: each tier makes its own key and may leave out parts of the pool's key (vllm#53495, PR#54342,
    PR#51748). Oracle: cold start, and the reference cache's upper bound. Vacuous when no block of another identity was
    cached for a prompt, or nothing was loaded.
    """
    sut.check(data.draw(partitions(sut.limits), label="workload"))


@requirement(
    "TIER-3",
    "adapters across a save and its restore",
    needs=(*SAVED, Capability.ADAPTER_CHOICE),
    suits=KEEPING_CELLS,
    shows=(SavedState.RESTORED_ELSE, Adapters.DISCRIMINATING),
    upstream=("llama.cpp#26207",),
)
@given(data=st.data())
def test_adapters_across_a_save_and_restore(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine does not share KV that was saved for one adapter, or for the base model, and restored before
    requests for another.

    Why it can break: the engine saves tokens and their KV, but not the adapter that they belong to (related to
    llama.cpp#26207). Oracle: cold start, and the reference cache's upper bound. Vacuous when no request of another
    identity could use what a restore had just brought back.
    """
    sut.check(data.draw(restored_for_others(sut.limits), label="workload"))


@requirement(
    "TIER-4",
    "loads that fail",
    needs=TIER,
    suits=FAILING_CELLS,
    shows=(Tiers.FAILED_LOADS, Tiers.AFTER_FAILURE, Tiers.LOADED),
    upstream=("LMCache#3388", "vllm#49250", "vllm#45474"),
)
@given(data=st.data())
def test_loads_that_fail(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Where a load from the second tier fails completely or partly, a conforming engine answers as cold or, where it is
    configured to do so, ends that request with an error. No other request is affected.

    Why it can break: blocks that were never filled stay published, or count as computed (LMCache#3388, vllm#49250,
    vllm#45474). Oracle: cold start; at most as many errors as failed loads. Vacuous when no load failed.
    """
    evicting = (working_sets(sut.limits), outgrowing_requests(sut.limits, afterwards=True))
    usual = st.one_of(sent_again_after_gaps(sut.limits), *evicting)
    sut.check(data.draw(with_rare(sut.limits, usual, loaded_together(sut.limits), every=3), label="workload"))


@requirement(
    "TIER-4",
    "preempted after a load that failed",
    needs=SIZED,
    suits=FAILING_CELLS,
    shows=(Tiers.FAILED_LOADS, Pressure.PREEMPTIONS, Tiers.LOADED),
    upstream=("vllm#26813",),
)
@given(data=st.data())
def test_preempted_after_a_load_that_failed(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers as cold a request that is preempted between a failed load from the second tier and
    the recomputation of what was not loaded.

    Why it can break: blocks that were never filled stay published until they are recomputed. The preempted request
    hits them when it resumes, and later requests hit them too (vllm#26813). Oracle: cold start. Vacuous when no load
    failed, or no request was preempted.
    """
    sut.check(data.draw(preempted_after_loads(sut.limits), label="workload"))


@requirement(
    "TIER-4",
    "loads that fail, of any share of the pool",
    needs=SIZED,
    suits=FAILING_CELLS,
    shows=(Tiers.FAILED_LOADS, Tiers.LOADED),
    upstream=("vllm#44560", "vllm#45388"),
)
@given(data=st.data())
def test_failed_loads_of_any_share_of_the_pool(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine answers as cold a request whose load from the second tier fails completely or partly, whether
    it needs a quarter of the pool, half, a little more or all of it.

    Why it can break: what the failed load reserved or held counts in addition to what the second attempt needs, and
    the request waits forever (vllm#45388). Oracle: cold start, and an answer in time. Vacuous when no load failed.
    """
    sut.check(data.draw(loads_by_share(sut.limits), label="workload"))


@requirement(
    "TIER-5",
    "everything at once, with a second tier",
    needs=(*SIZED, Capability.STREAMING),
    suits=(CellTrait.SECOND_TIER,),
    shows=(Tiers.LOADED, Requests.HITS, Pressure.IDLE_COMPARED, Adapters.TOGETHER, Pressure.PREEMPTIONS),
    shows_where=SLOW,
    weight=4,
)
@given(data=st.data())
def test_everything_at_once_with_a_second_tier(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With chats, repeats, adapters, salts, evictions, preemptions, aborts and resets in one workload, and a second KV
    tier behind the pool, a conforming engine answers as cold. While it is idle between them, it holds no block for any
    request.

    Why it can break: a request may be preempted, aborted or affected by a reset while a store or a load of its blocks
    is in progress. Oracle: cold start, the reference cache, the gauges after each part. Vacuous without loads and
    preemptions.
    """
    sut.check(data.draw(mixed(sut.limits), label="workload"))


@requirement(
    "TIER-5",
    "client disconnects during a load",
    needs=(*SIZED, Capability.STREAMING, Capability.ABORT),
    suits=(CellTrait.SECOND_TIER,),
    shows=(Tiers.LOADED, Control.AFTER_ABORT, Pressure.IDLE_COMPARED),
    upstream=("vllm#32255", "vllm#46283", "vllm#46240"),
)
@given(data=st.data())
def test_client_disconnects_during_loads(sut: SystemUnderTest, data: st.DataObject) -> None:
    """With a second KV tier, a conforming engine answers as cold after a client disconnected while the KV of its prompt
    was being loaded, and it frees the blocks of that request.

    Why it can break: the blocks are freed while they are still being written, or are never freed (vllm#32255). Oracle:
    cold start, the gauges. Vacuous when nothing was loaded, or no request followed an abort.
    """
    sut.check(data.draw(aborted_loads(sut.limits), label="workload"))


@requirement(
    "TIER-6",
    "KV of an engine with other weights, KV format, rope settings or adapter files",
    needs=(Capability.PERSISTENT_KV, *COUNTED),
    suits=("persistent tier",),
    shows=(Tiers.AFTER_OTHER_ENGINE,),
    upstream=("sglang#26792",),
)
@given(data=st.data())
def test_kv_of_an_engine_with_a_difference(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Where KV outlives its engine, in files or in a store, a conforming engine does not use what an engine before it
    computed with other weights at the same path, in another KV format, with other rope settings, or for other adapter
    files at the same path. It answers as cold.

    Why it can break: the key has the tokens and the model's name, but not what else the KV depends on. Oracle: cold
    start, and the reference cache's upper bound, which such KV does not raise. Vacuous when no prompt was sent again
    after such a restart.
    """
    sut.check(data.draw(restarts_after_changes(sut.limits), label="workload"))


@requirement(
    "TIER-6",
    "KV of an equal engine before",
    needs=(Capability.PERSISTENT_KV, *COUNTED),
    suits=("persistent tier",),
    shows=(Tiers.LOADED_AFTER_RESTART,),
)
@given(data=st.data())
def test_kv_of_an_equal_engine(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Where KV outlives its engine, the next engine with the same configuration uses it and answers as cold.

    Why it can break: a part of the key differs in each process, or the next engine reads a part of a block. Oracle:
    cold start, the reference cache. Vacuous when nothing was hit that only the engine before can have computed.
    """
    sut.check(data.draw(restarts_without_changes(sut.limits), label="workload"))


@requirement(
    "TIER-7",
    "a tier whose server ends and is started again",
    needs=(*TIER, Capability.STREAMING, Capability.CACHE_RESET, Capability.TIER_FAILURES),
    suits=("failing tier",),
    shows=(
        *(Sides.TIER_RESTARTS, Sides.AFTER_SIDE_RESTART, Sides.LOADED_FROM_RESTARTED),
        Pressure.IDLE_COMPARED,
    ),
    upstream=("LMCache#4642", "LMCache#4069"),
)
@given(data=st.data())
def test_a_tier_whose_server_ends_and_is_started_again(sut: SystemUnderTest, data: st.DataObject) -> None:
    """While the server of a second tier is down, a request gets its cold answer or an error. After it answers again,
    every request gets its cold answer, no block is held for requests that have ended, and what is stored then is
    loaded.

    Why it can break: the new server knows neither the engine nor what the old one promised it, and the engine waits for
    an answer that nobody will give (LMCache#4642, LMCache#4069). Oracle: cold start, the reference cache, the gauges.
    Vacuous when no server was killed, no prompt was sent again afterwards, nothing was loaded afterwards, or the gauges
    were not read.
    """
    sut.check(data.draw(failing_tiers(sut.limits), label="workload"))


@requirement(
    "TIER-8",
    "files of a tier that are lost",
    needs=(*SIZED, Capability.TIER_FILES),
    suits=("lost files",),
    shows=(LostFiles.LOSSES, LostFiles.MISSED, Tiers.LOADED),
    weight=4,  # each example fills the pool and host memory several times
    upstream=("vllm#49176", "LMCache#4991"),
)
@given(data=st.data())
def test_files_of_a_tier_that_are_lost(sut: SystemUnderTest, data: st.DataObject) -> None:
    """Where files of a second tier are removed or cut while the engine runs, a conforming engine answers every request
    as cold, makes none of them wait for a file that is gone, and frees every block.

    Why it can break: what a lookup found is remembered, so that a request waits for ever for a file that is gone
    (vllm#49176), or a part of a file is taken for a block (LMCache#4991). Oracle: cold start, and an answer in time.
    Vacuous when no file was lost, no request missed what had been in one, or nothing was loaded.
    """
    sut.check(data.draw(lost_between(sut.limits), label="workload"))


@requirement(
    "TIER-9",
    "limits on what is loaded and stored for a request",
    needs=(*TIER, Capability.TRANSFER_LIMITS),
    suits=("second tier with limits for a request",),
    shows=(Tiers.LOADED, TransferLimits.CUT_LOADS, TransferLimits.CUT_STORES),
    weight=2,  # one test has all of the requirement's examples
    upstream=("vllm#52397",),
)
@given(data=st.data())
def test_limits_of_a_request(sut: SystemUnderTest, data: st.DataObject) -> None:
    """If a request says how many of its tokens may be loaded from the second KV tier, or stored in it, a conforming
    engine loads no more, answers it as cold, and answers as cold what others load or hit of it.

    Why it can break: a load, or a store, then ends where none did before, and what an engine assumes about such ends
    holds no more (vllm PR#52397: the engine ends). Oracle: cold start, and the engine's count of loaded tokens. Vacuous
    when nothing was loaded, or no limit was below what there was.
    """
    usual = limited(sut.limits)
    sut.check(data.draw(with_rare(sut.limits, usual, with_some_limits(sut.limits), every=3), label="workload"))
