"""Control from outside: cache resets, and clients that disconnect."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.judgement.evidence.names import Evidence
from coldproof.harness.judgement.requirement import requirement
from coldproof.harness.session.system_under_test import SystemUnderTest
from coldproof.harness.workload.generators.resets_and_aborts import aborts, changes_and_resets, resets

TOKENS = (Capability.TOKEN_PROMPTS, Capability.TOKEN_OUTPUTS, Capability.STREAMING)
COUNTED = (*TOKENS, Capability.CACHED_TOKENS)


@requirement(
    "CTRL-1",
    "cache reset",
    needs=(*COUNTED, Capability.CACHE_RESET),
    shows=(Evidence.RESETS, Evidence.RESETS_UNDER_LOAD, Evidence.AFTER_RESET, Evidence.HITS),
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
    sut.check(data.draw(resets(sut.limits), label="workload"))


@requirement(
    "CTRL-1",
    "cache reset after a change of an adapter's files",
    needs=(*COUNTED, Capability.CACHE_RESET, Capability.RUNTIME_LORA),
    shows=(Evidence.RESETS, Evidence.HITS, Evidence.STALE_CHANCES),
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
    shows=(Evidence.ABORTED_QUEUED, Evidence.ABORTED_PREFILL, Evidence.ABORTED_DECODE, Evidence.AFTER_ABORT),
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
    sut.check(data.draw(aborts(sut.limits), label="workload"))
