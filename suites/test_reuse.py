"""Prefix reuse: an engine that never reports a hit gives correct answers and still does not conform."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.harness.features.non_prefix.workloads import rearranged
from coldproof.harness.judgement.evidence.cache import Reuse
from coldproof.harness.judgement.evidence.lossy import Lossy
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.edges import any_length, chunks_at_edges, crowds, long_neighbours
from coldproof.harness.workload.generators.rare import with_rare
from coldproof.harness.workload.generators.reuse import repeats, returns, traffic

AREA = "expected cache hits"
TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.CACHED_TOKENS)
COUNTED = (*TOKENS, Capability.BLOCK_SIZE, Capability.POOL_SIZE)
HIT_CELLS = (CellTrait.PLAIN, CellTrait.HITS, CellTrait.KV_LAYOUT)
COUNTED_CELLS = (*HIT_CELLS, CellTrait.STEP_COUNTS)


@requirement(
    "REUSE-1",
    "the same prompt again: A, A",
    needs=COUNTED,
    suits=COUNTED_CELLS,
    shows=(Reuse.REPEAT_HITS, Reuse.EXPECTED),
    upstream=("vllm#17954", "kvcached#446", "LMCache#1139"),
)
@given(data=st.data())
def test_a_prompt_sent_again(sut: SystemUnderTest, data: st.DataObject) -> None:
    """When a prompt is sent again while the pool has room, a conforming engine hits every whole block of it.

    Why it can break: a hash that differs between two equal requests, or a block that is never published, loses hits but
    changes no token (vllm#17954, kvcached#446). Oracle: the reference cache's lower bound, and cold start. Vacuous when
    the reference cache required no hit.
    """
    usual, rare = repeats(sut.limits), any_length(sut.limits)
    sut.check(data.draw(with_rare(sut.limits, usual, rare, every=3), label="workload"))


@requirement(
    "REUSE-2",
    "the same prompt after others: A, B, A",
    needs=COUNTED,
    suits=COUNTED_CELLS,
    shows=(Reuse.RETURN_HITS, Reuse.EXPECTED),
    upstream=("vllm#50630", "vllm#48435"),
)
@given(data=st.data())
def test_a_prompt_sent_again_after_others(sut: SystemUnderTest, data: st.DataObject) -> None:
    """When a prompt is sent again after other prompts, a conforming engine still hits every whole block of it. The
    other prompts may share a prefix with it.

    Why it can break: the other prompts' blocks evict its blocks from a pool that is almost empty, or replace them in
    the index (vllm#50630, and a field report of 0 hits at 23 % pool usage). Oracle: the reference cache's lower bound,
    and cold start. Vacuous when no prompt was sent again after another one.
    """
    usual, rare = returns(sut.limits), long_neighbours(sut.limits)
    sut.check(data.draw(with_rare(sut.limits, usual, rare, every=3), label="workload"))


@requirement(
    "REUSE-3",
    "counts agree",
    needs=(*COUNTED, Capability.HIT_COUNTERS),
    suits=HIT_CELLS,
    shows=(Reuse.COUNTED, Reuse.REPEAT_HITS, Reuse.RETURN_HITS),
    upstream=("vllm#25780", "vllm#43736"),
)
@given(data=st.data())
def test_counts_agree(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's cached-token count of each request, its metrics and the reference cache agree.

    Why it can break: hits are counted in other code than the code that makes them, and dashboards trust the counters.
    Oracle: the sum over the requests, compared with the increase of the counters; the reference cache's two bounds.
    Vacuous when nothing was hit, or the engine also served requests that Coldproof did not send.
    """
    rare = (crowds(sut.limits), any_length(sut.limits), chunks_at_edges(sut.limits))
    sut.check(data.draw(with_rare(sut.limits, traffic(sut.limits), *rare), label="workload"))


@requirement(
    "REUSE-3",
    "counts agree with non-prefix KV reuse",
    needs=(*COUNTED, Capability.HIT_COUNTERS, Capability.MOVED_PIECES),
    suits=HIT_CELLS,
    shows=(Reuse.COUNTED, Lossy.MOVED),
    upstream=("llama.cpp#15082",),
)
@given(data=st.data())
def test_counts_agree_with_non_prefix_reuse(sut: SystemUnderTest, data: st.DataObject) -> None:
    """A conforming engine's counts also agree where it reuses the KV of parts of a prompt at other positions
    (non-prefix KV reuse).

    Why it can break: a part is found but not reused, or it is counted as cached and computed anyway (llama.cpp#15082).
    Oracle: the sum over the requests, compared with the increase of the counters; a request hits at most the prompt
    tokens that are in parts of what was computed for its identity. Vacuous when no part was reused at another position.
    """
    sut.check(data.draw(rearranged(sut.limits), label="workload"))
