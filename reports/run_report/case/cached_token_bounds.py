"""Compares a request's cached-token count with the bounds of the reference cache, as text and as a bullet graph.

The bounds come from the run. This module only compares the numbers; it gives no verdict.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldproof.harness.schema.case import RequestRow

BULLET_WIDTH = 120.0


@dataclass(frozen=True, slots=True)
class Bullet:
    """A bullet graph: the prompt is a line, the expected range a box on it, the reported count a stroke across it."""

    x: float
    width: float
    count: float
    broken: bool


def bound_violation(row: RequestRow) -> str:
    """Return which bound of the reference cache the count violates, as text; "" if it is in range or not reported."""
    if row.cached_tokens is None:
        return ""
    if row.cached_at_most is not None and row.cached_tokens > row.cached_at_most:
        return "too many cached tokens"
    if row.cached_at_least is not None and row.cached_tokens < row.cached_at_least:
        return "too few cached tokens"
    return ""


def expected_range(row: RequestRow) -> str:
    """Return the range of cached tokens that the reference cache expects, as text."""
    if row.cached_at_least is None and row.cached_at_most is None:
        return "no expected range"
    if row.cached_at_least == row.cached_at_most:
        return f"expected exactly {row.cached_at_least}"
    if row.cached_at_most is None:
        return f"expected at least {row.cached_at_least}"
    if row.cached_at_least is None:
        return f"expected at most {row.cached_at_most}"
    return f"expected {row.cached_at_least} to {row.cached_at_most}"


def bullet(row: RequestRow) -> Bullet | None:
    """Return the bullet graph, or None if the count or the upper bound is not known."""
    if row.cached_tokens is None or row.cached_at_most is None or row.prompt_tokens <= 0:
        return None
    least, most, count = (
        round(min(value / row.prompt_tokens, 1.0) * BULLET_WIDTH, 1)
        for value in (row.cached_at_least or 0, row.cached_at_most, row.cached_tokens)
    )
    return Bullet(least, max(round(most - least, 1), 2.0), count, bool(bound_violation(row)))
