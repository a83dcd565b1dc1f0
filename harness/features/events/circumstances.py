"""Circumstances of a failure: KV events."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones
from coldproof.harness.features.events.checks import late_announcements
from coldproof.harness.features.events.hash_checks import computed
from coldproof.harness.schema.verdict import FailureClass


@circumstances(300)
def of_hashes(failure: Failure) -> Iterable[str]:
    """Return whether published hashes differ from the computed ones, and only for blocks of adapters."""
    if failure.failure_class is not FailureClass.API:
        return []
    wrong = [one.block for one in computed(failure.history) if not one.agrees]
    return true_ones({"only adapters' hashes": bool(wrong) and all(block.lora_name is not None for block in wrong)})


@circumstances(310)
def of_announcements(failure: Failure) -> Iterable[str]:
    """Return whether the engine announced a reset too late."""
    if failure.failure_class is not FailureClass.ACCOUNTING:
        return []
    return true_ones({"announced late": bool(late_announcements(failure.history))})
