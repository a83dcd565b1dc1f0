"""Circumstances of a failure: prompts with images."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones
from coldproof.harness.history.images import has_images, sent_images


@circumstances(230)
def of_images(failure: Failure) -> Iterable[str]:
    """Return whether prompts have images, and how these were sent."""
    outcomes = failure.history.outcomes
    images = [image for outcome in outcomes for _, _, image in sent_images(outcome)]
    return true_ones(
        {
            "images": any(map(has_images, outcomes)),
            "named by the client": any(image.uuid for image in images),
            "in files": any(image.encoding for image in images),
            "processor arguments": any(image.arguments for image in images),
        }
    )
