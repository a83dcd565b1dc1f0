"""The names of the evidence that reports draw. `coldproof.harness.judgement.evidence.names` uses them too."""

from __future__ import annotations

import enum


class ReportedEvidence(enum.StrEnum):
    """The counters that are drawn over time and as distributions. `Evidence` in evidence/names.py has all counters."""

    HIT_TOKENS = "hit tokens"
    EVICTED = "evicted prompt tokens"
    PREEMPTIONS = "preemptions"
    TELLING = "requests where a stale hit would change the answer"
