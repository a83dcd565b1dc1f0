"""Scripts of cases about prompts with embedding rows."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag


@flag("CONTENT")
@flag("ROWS")
def has_rows(about: ScriptCase) -> bool:
    """Return whether some prompts have embedding rows."""
    return any(segment.rows for segment in about.segments)
