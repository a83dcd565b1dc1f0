"""Which tokens a request left keys and values of, how far two sequences agree, and whose may be shared. Pure."""

from __future__ import annotations

from harness.history import History, Outcome


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many leading tokens two sequences share."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


def computed(outcome: Outcome) -> tuple[int, ...]:
    """The tokens whose KV a request wrote: all but the last sampled one, whose KV no pass computes (vllm#54193)."""
    return outcome.prompt + outcome.token_ids[:-1]


def others_alike(history: History, outcome: Outcome) -> list[Outcome]:
    """Other requests that may have been of this one's identity and were sent before it ended."""
    return [
        other
        for other in history.outcomes
        if other.request != outcome.request
        and other.sent < outcome.finished
        and set(other.identities) & set(outcome.identities)
    ]
