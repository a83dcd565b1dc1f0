"""A request's cached-token count beside what the reference cache allows: in words, and as a small bullet graph.

Nothing here judges: bounds are the run's, this only compares the numbers it was given.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.schema import RequestRow

BULLET = 120.0  # wide


@dataclass(frozen=True, slots=True)
class Bullet:
    """The prompt as a line, what may be cached as a stretch of it, and the count as a stroke across."""

    x: float
    width: float
    count: float
    broken: bool


def bound_broken(row: RequestRow) -> str:
    """Which bound of the reference cache the count is outside of, in words; empty if it is inside or not known."""
    if row.cached_tokens is None:
        return ""
    if row.cached_at_most is not None and row.cached_tokens > row.cached_at_most:
        return "more than may be cached"
    if row.cached_at_least is not None and row.cached_tokens < row.cached_at_least:
        return "less than must be cached"
    return ""


def bounds_in_words(row: RequestRow) -> str:
    """The reference cache's bounds of the cached-token count."""
    if row.cached_at_least is None and row.cached_at_most is None:
        return "no bounds known"
    if row.cached_at_least == row.cached_at_most:
        return f"exactly {row.cached_at_least}"
    least = "" if row.cached_at_least is None else f"at least {row.cached_at_least}"
    most = "" if row.cached_at_most is None else f"at most {row.cached_at_most}"
    return ", ".join(filter(None, (least, most)))


def bullet(row: RequestRow) -> Bullet | None:
    """The graph, or None where there is no count or nothing to hold it against."""
    if row.cached_tokens is None or row.cached_at_most is None or row.prompt_tokens <= 0:
        return None
    least, most, count = (
        round(min(value / row.prompt_tokens, 1.0) * BULLET, 1)
        for value in (row.cached_at_least or 0, row.cached_at_most, row.cached_tokens)
    )
    return Bullet(least, max(round(most - least, 1), 2.0), count, bool(bound_broken(row)))
