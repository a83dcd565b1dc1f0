"""Circumstances of a failure: prompts with embedding rows."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones
from coldproof.harness.history.embedding_rows import differences, sends_rows


@circumstances(210)
def of_rows(failure: Failure) -> Iterable[str]:
    """Return whether prompts have embedding rows, and whether one of them continues another one."""
    outcomes, requests = failure.history.outcomes, failure.requests
    return true_ones(
        {
            "embedding rows": any(map(sends_rows, outcomes)),
            "next turn": any(one.hidden and requests[one.request].prompt.continues is not None for one in outcomes),
        }
    )


@circumstances(330)
def of_similar_rows(failure: Failure) -> Iterable[str]:
    """Return in what the failing prompt differs from others with embedding rows that a key may confuse with it."""
    failing = [outcome for outcome in failure.outcomes if outcome.hidden]
    return sorted(text for outcome in failing for text in differences(failure.history, outcome))
