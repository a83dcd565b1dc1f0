"""Scripts of cases about prompts with images."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag


@flag("CONTENT")
@flag("IMAGES")
def has_images(about: ScriptCase) -> bool:
    """Return whether some prompts have images."""
    return any(segment.image for segment in about.segments)
