"""Which tokens a request left KV of, how far two sequences agree, and which requests may share KV."""

from __future__ import annotations

from coldproof.harness.history.records import History, Outcome


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """Return how many leading tokens two sequences share."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


def written_tokens(outcome: Outcome) -> tuple[int, ...]:
    """Return the tokens whose KV a request wrote: all but the last sampled one, whose KV no pass computes
    (vllm#54193).
    """
    return outcome.prompt + outcome.token_ids[:-1]


def requests_with_same_identity(history: History, outcome: Outcome) -> list[Outcome]:
    """Return other requests that may have had the same identity and were sent before this one ended."""
    return [
        other
        for other in history.outcomes
        if other.request != outcome.request
        and other.sent < outcome.finished
        and set(other.identities) & set(outcome.identities)
    ]
