"""Which tokens a request left keys and values of, and how far two sequences agree. Pure."""

from __future__ import annotations

from harness.history import Outcome


def common_prefix(left: tuple[int, ...], right: tuple[int, ...]) -> int:
    """How many leading tokens two sequences share."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return min(len(left), len(right))


def computed(outcome: Outcome) -> tuple[int, ...]:
    """The tokens whose KV a request wrote: all but the last sampled one, whose KV no pass computes (vllm#54193)."""
    return outcome.prompt + outcome.token_ids[:-1]
