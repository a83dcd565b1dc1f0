"""Workloads of the feature drafts, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.drafts.workloads import hits_left_beside_a_full_context, hits_with_drafts

USUAL = {
    "drafts": lambda on: hits_with_drafts(on, with_adapter=True),
    "drafts beside a full context": hits_left_beside_a_full_context,
}
