"""Control from outside: cache resets, and clients that disconnect."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.lora.evidence import Adapters
from coldproof.harness.features.pressure.shared_workloads import pressed
from coldproof.harness.features.resets.scoped_workloads import (
    RUNNING,
    resets_during_stores,
    resets_of_running_requests,
    resets_of_the_second_tier,
)
from coldproof.harness.features.resets.workloads import (
    aborts,
    aborts_beside_sharers,
    changes_and_resets,
    resets,
)
from coldproof.harness.features.tiers.evidence import Tiers
from coldproof.harness.judgement.evidence.cache import Control
from coldproof.harness.judgement.evidence.requests import Requests
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.ageing import many_resets
from coldproof.harness.workload.generators.edges import chunks_at_edges
from coldproof.harness.workload.generators.rare import with_rare

AREA = "cache resets and client disconnects"
TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.STREAMING)
COUNTED = (*TOKENS, Capability.CACHED_TOKENS)
RESET_CELLS = (CellTrait.PLAIN, CellTrait.RESETS, CellTrait.KV_LAYOUT, CellTrait.WAITING)
WIDER_RESET_CELLS = (CellTrait.RESETS, CellTrait.SECOND_TIER)


@requirement(
    "CTRL-1",
    "cache reset",
    needs=(*COUNTED, Capability.CACHE_RESET),
    suits=RESET_CELLS,
    shows=(Control.RESETS, Control.RESETS_UNDER_LOAD, Control.AFTER_RESET, Requests.HITS),
    upstream=("vllm#12284", "vllm#28827", "omni#6739"),
)
@given(data=st.data())
def test_cache_reset(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a cache reset that reports success, nothing of what was cached before can be hit. This also holds for a
    reset under load, which may instead report failure.

    Why it can break: blocks in use survive the reset, or the engine reports success whatever it did (vllm PR#12284).
    Oracle: the reference cache's upper bound is zero after each successful reset. Vacuous when no reset succeeded, no
    reset was requested under load, or no block was cached that could have been hit.
    """
    rare = [many_resets(sut.limits)]
    if sut.limits.small_pool is not None:
        rare.append(pressed(sut.limits, scopes=((),)))
    sut.check(data.draw(with_rare(sut.limits, resets(sut.limits), *rare, every=3), label="workload"))


@requirement(
    "CTRL-1",
    "cache reset after a change of an adapter's files",
    needs=(*COUNTED, Capability.CACHE_RESET, Capability.RUNTIME_LORA),
    suits=RESET_CELLS,
    shows=(Control.RESETS, Requests.HITS, Adapters.STALE_CHANCES),
)
@given(data=st.data())
def test_files_that_change_before_a_reset(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a cache reset that reports success, a conforming engine reuses no KV of an adapter's earlier files.

    Why it can break: a reset that leaves some blocks, or the blocks of one group, in the index still gives correct
    answers as long as nothing else has changed. Oracle: cold start with the new files. Vacuous when no block of the
    earlier files was cached for a later prompt.
    """
    sut.check(data.draw(changes_and_resets(sut.limits), label="workload"))


@requirement(
    "CTRL-2",
    "aborted requests",
    needs=(*TOKENS, Capability.ABORT, Capability.METRICS),
    suits=(CellTrait.ABORTS,),
    shows=(Control.ABORTED_QUEUED, Control.ABORTED_PREFILL, Control.ABORTED_DECODE, Control.AFTER_ABORT),
    upstream=("vllm#56525", "sglang#38319", "vllm#44100"),
)
@given(data=st.data())
def test_aborted_requests(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a request is aborted (queued, in prefill or in decode), a conforming engine answers the same prefix as cold
    when it is sent again at once.

    Why it can break: the request's blocks were published before they were written, or freed while a step still wrote to
    them (vllm PR#56525, sglang#38319). Oracle: cold start. Vacuous when one of the three stages had no abort, or no
    request followed an abort.
    """
    rare = [chunks_at_edges(sut.limits, disconnects=True)]
    if sut.limits.small_pool is not None:
        rare += [aborts_beside_sharers(sut.limits), pressed(sut.limits, disconnects=True)]
    sut.check(data.draw(with_rare(sut.limits, aborts(sut.limits), *rare), label="workload"))


@requirement(
    "CTRL-3",
    "reset of running requests",
    needs=(*COUNTED, Capability.CACHE_RESET, Capability.RESET_RUNNING),
    suits=WIDER_RESET_CELLS,
    shows=(Control.RESETS_OF_RUNNING, Control.AFTER_RESET, Requests.HITS),
    upstream=("vllm#28827", "vllm#41190"),
)
@given(data=st.data())
def test_reset_of_running_requests(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a reset that covers running requests and reports success, nothing of what was cached before can be hit, and
    the running requests continue and answer as cold. An engine that cannot reset them does not report success.

    Why it can break: running requests hold blocks, so that the engine must discard them and compute them again. A
    request may keep some of them, repeat or lose a token, or never resume (vllm PR#28827). Oracle: cold start, and the
    reference cache's upper bound of zero. Vacuous when no such reset succeeded while a request ran, or no later
    request could have hit what it removed.
    """
    usual, scopes = resets_of_running_requests(sut.limits), (RUNNING, RUNNING, ())
    rare = [pressed(sut.limits, outgrow=True, scopes=scopes)] if sut.limits.small_pool is not None else []
    sut.check(data.draw(with_rare(sut.limits, usual, *rare), label="workload"))


@requirement(
    "CTRL-3",
    "reset of the second tier",
    needs=(*COUNTED, Capability.CACHE_RESET, Capability.SECOND_TIER, Capability.RESET_SECOND_TIER, Capability.METRICS),
    suits=WIDER_RESET_CELLS,
    shows=(Control.RESETS_OF_TIER, Control.AFTER_TIER_RESET, Tiers.LOADED),
    upstream=("vllm#42694",),
)
@given(data=st.data())
def test_reset_of_the_second_tier(sut: SystemUnderTest, data: st.DataObject) -> None:
    """After a reset that covers the second KV tier and reports success, nothing that was cached before can be hit in
    the pool or loaded from the tier, also when requests run. An engine that cannot reset its tier does not report
    success.

    Why it can break: the pool and the tier are reset by different code, and a tier that has no reset counts as one that
    succeeded. Transfers in progress may bring back what the reset removed. Oracle: the reference cache's upper bound
    of zero for both tiers together. Vacuous when no request could have loaded what a reset had to remove, or nothing
    was ever loaded.
    """
    usual, rare = resets_of_the_second_tier(sut.limits), resets_during_stores(sut.limits)
    sut.check(data.draw(with_rare(sut.limits, usual, rare), label="workload"))
