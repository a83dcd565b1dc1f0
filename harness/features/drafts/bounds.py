"""What the reference cache must not expect of an engine with speculative decoding. Pure."""

from __future__ import annotations

from coldproof.harness.history.records import History, counts_drafts
from coldproof.harness.judgement.reference_cache import may_leave_out
from coldproof.harness.judgement.request_sizes import AHEAD


@may_leave_out
def unverified_drafts(history: History) -> int:
    """Return how many drafts a request's last step may have accepted, if the engine counts drafts, which it does with
    speculative decoding: vLLM publishes a step's blocks before it verifies the drafts.
    """
    return AHEAD if counts_drafts(history) else 0
