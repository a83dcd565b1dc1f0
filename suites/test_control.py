"""What people do to an engine from outside: reset its cache, and hang up."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from adapters.base import Capability
from harness.evidence import Evidence
from harness.generators.control import aborts, changes_and_resets, resets
from harness.lab import Lab
from harness.requirement import requirement

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
def test_cache_reset(lab: Lab, data: st.DataObject) -> None:
    """A cache reset that reports success leaves nothing to hit, also when asked for under load (or reports failure).

    Why it can break: blocks that are in use survive it, or the answer is success whatever was done (vllm PR#12284).
    Oracle: the reference cache's upper bound starts from nothing at a successful reset. Vacuous when none succeeded,
    none was asked for under load, or nothing lay there to be hit.
    """
    lab.check(data.draw(resets(lab.grounds), label="workload"))


@requirement(
    "CTRL-1",
    "cache reset after a change of an adapter's files",
    needs=(*COUNTED, Capability.CACHE_RESET, Capability.RUNTIME_LORA),
    shows=(Evidence.RESETS, Evidence.HITS, Evidence.STALE_CHANCES),
)
@given(data=st.data())
def test_files_that_change_before_a_reset(lab: Lab, data: st.DataObject) -> None:
    """Nothing of an adapter's earlier files, either.

    Why it can break: a reset that leaves some blocks, or one group's, in the index gives right answers as long as
    nothing else has changed. Oracle: cold start under the new files. Vacuous when no block of the old ones lay ready.
    """
    lab.check(data.draw(changes_and_resets(lab.grounds), label="workload"))


@requirement(
    "CTRL-2",
    "aborted requests",
    needs=(*TOKENS, Capability.ABORT, Capability.METRICS),
    shows=(Evidence.ABORTED_QUEUED, Evidence.ABORTED_PREFILL, Evidence.ABORTED_DECODE, Evidence.AFTER_ABORT),
    upstream=("vllm#56525", "sglang#38319", "vllm#44100"),
)
@given(data=st.data())
def test_aborted_requests(lab: Lab, data: st.DataObject) -> None:
    """An aborted request (queued, in mid-prefill, in mid-decode) leaves nothing wrong: the same prefix asked at once
    again is answered by a conforming engine as cold.

    Why it can break: its blocks were published before they were written, or freed while a step still wrote them
    (vllm PR#56525, sglang#38319). Oracle: cold start. Vacuous when one of the stages was never hit upon, or nobody came
    after an abort.
    """
    lab.check(data.draw(aborts(lab.grounds), label="workload"))
