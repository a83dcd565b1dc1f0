"""The names of the evidence that reports draw or judge. The counters in `harness/judgement/evidence` use them too."""

from __future__ import annotations

import enum


class ReportedEvidence(enum.StrEnum):
    """The counters that are drawn over time and as distributions, and those that decide about a whole run.

    `COUNTERS` in harness/judgement/collect.py has all counters.
    """

    HIT_TOKENS = "hit tokens"
    EVICTED = "evicted prompt tokens"
    PREEMPTIONS = "preemptions"
    DISCRIMINATING = "requests where a stale hit would change the answer"
    COMPARED_HITS = "prompts compared with the cold answer on a hit"
    DIVERGED_HITS = "of these, with another answer that was not called wrong"
    TOKENS_HITS = "tokens of these answers, each up to the first that differs"
    COMPARED_MISSES = "prompts compared with the cold answer without a hit"
    DIVERGED_MISSES = "of these without a hit, with another answer that was not called wrong"
    TOKENS_MISSES = "tokens of these answers without a hit, each up to the first that differs"
    SENSITIVE = "examples whose cold answer depends on the cached tokens"
    INSENSITIVE = "examples whose cold answer does not depend on the cached tokens"
    INSENSITIVE_REQUESTS = "requests of examples whose cold answer does not depend on the cached tokens"
