"""Circumstances of a failure: drafts of speculative decoding."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones
from coldproof.harness.features.drafts.facts import cold_and_hit
from coldproof.harness.schema.verdict import FailureClass

FEWER_DRAFTS = "fewer drafts accepted"


@circumstances(320)
def of_drafts(failure: Failure) -> Iterable[str]:
    """Return whether fewer drafts were accepted for the failing request than without a hit."""
    if failure.failure_class is not FailureClass.LOST_REUSE:
        return []
    pairs = [pair for pair in cold_and_hit(failure.history) if pair.hit.request == failure.about]
    return true_ones({FEWER_DRAFTS: any(pair.hit_counts.accepted < pair.cold_counts.accepted for pair in pairs)})
