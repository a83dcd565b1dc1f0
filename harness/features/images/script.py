"""Scripts of cases about prompts with images."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import Told, flag


@flag("CONTENT")
@flag("IMAGES")
def has_images(told: Told) -> bool:
    """Return whether some prompts have images."""
    return any(segment.image for segment in told.segments)
