"""Reuse that is owed: an engine that never hits gives right answers and does not conform."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.pieces import rearranged
from harness.generators.reuse import repeats, returns, traffic
from harness.lab import Lab
from harness.requirement import requirement

COUNTED = (
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.CACHED_TOKENS,
    Capability.BLOCK_SIZE,
    Capability.POOL_SIZE,
)


@requirement(
    "REUSE-1",
    "A, A",
    needs=COUNTED,
    shows=(Evidence.REPEAT_HITS, Evidence.OWED),
    upstream=("vllm#17954", "kvcached#446", "LMCache#1139"),
)
@given(data=st.data())
def test_a_prompt_sent_again(lab: Lab, data: st.DataObject) -> None:
    """A prompt sent again while the pool has room hits every whole unit of it.

    Why it can break: a hash that differs between two requests, or a block that is not published, costs every hit and no
    token (vllm#17954, kvcached#446). Oracle: the reference cache's lower bound, and cold start. Vacuous when no request
    was owed a hit.
    """
    lab.check(data.draw(repeats(lab.grounds), label="workload"))


@requirement(
    "REUSE-2",
    "A, B, A",
    needs=COUNTED,
    shows=(Evidence.RETURN_HITS, Evidence.OWED),
    upstream=("vllm#50630", "vllm#48435"),
)
@given(data=st.data())
def test_a_prompt_sent_again_after_others(lab: Lab, data: st.DataObject) -> None:
    """It still does after other prompts came between that share a prelude with it or nothing.

    Why it can break: the other prompt's blocks push these out of a pool that is hardly used, or take their place in the
    index (vllm#50630, and a field report of 0 hits at 23 % use). Oracle: the reference cache's lower bound, and cold
    start. Vacuous when no prompt came back after another one.
    """
    lab.check(data.draw(returns(lab.grounds), label="workload"))


@requirement(
    "REUSE-3",
    "counts agree",
    needs=(*COUNTED, Capability.HIT_COUNTERS),
    shows=(Evidence.COUNTED, Evidence.REPEAT_HITS, Evidence.RETURN_HITS),
    upstream=("vllm#25780", "vllm#43736"),
)
@given(data=st.data())
def test_counts_agree(lab: Lab, data: st.DataObject) -> None:
    """A conforming engine's per-request counts, its metrics and the reference cache agree.

    Why it can break: hits are counted at other places than where they happen, and dashboards believe the counters.
    Oracle: the sum over the requests against the growth of the counters; the reference cache's two bounds. Vacuous when
    nothing was hit, or the engine was not ours alone.
    """
    lab.check(data.draw(traffic(lab.grounds), label="workload"))


@requirement(
    "REUSE-3",
    "counts agree, pieces at other places",
    needs=(*COUNTED, Capability.HIT_COUNTERS, Capability.MOVED_PIECES),
    shows=(Evidence.COUNTED, Evidence.MOVED),
    upstream=("llama.cpp#15082",),
)
@given(data=st.data())
def test_counts_agree_about_moved_pieces(lab: Lab, data: st.DataObject) -> None:
    """So they do where pieces of prompts are reused at other places.

    Why it can break: a piece is found and not taken over, or counted and computed all the same (llama.cpp#15082).
    Oracle: the sum over the requests against the growth of the counters; no more than the tokens of a prompt that stand
    in pieces of what was computed for its identity. Vacuous when no piece was reused at another place.
    """
    lab.check(data.draw(rearranged(lab.grounds), label="workload"))
