"""Scripts of cases about prompts with embedding rows."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import Told, flag


@flag("CONTENT")
@flag("ROWS")
def has_rows(told: Told) -> bool:
    """Return whether some prompts have embedding rows."""
    return any(segment.rows for segment in told.segments)
