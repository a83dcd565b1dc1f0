"""Evidence about the caches beside the prefix cache: what the encoder and the processor made of images before. Pure.

Only images count of which a part is computed: the prefix cache covers the others, whatever the other caches have.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from coldproof.adapters.protocol.images import image_and_offset, is_image
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.harness.history.images import has_images
from coldproof.harness.history.records import History, Outcome, ResetRecord
from coldproof.harness.history.weights import is_comparable
from coldproof.harness.judgement.counters import Evidence, computes

Pair = Callable[[Outcome, Outcome], bool]


class ImageCaches(Evidence):
    """Images that came again after what the caches of the encoder and the processor must notice."""

    AFTER_UPDATE = "requests with an image that other weights had encoded"
    AFTER_ENCODER = "requests with an image of before a reset of the encoder cache alone"
    AFTER_PROCESSOR = "requests with an image of before a reset of the processor's cache alone"
    AFTER_PREFIX = "requests with an image of before a reset of the prefix cache alone"
    AFTER_RELOAD = "requests with an image that another content of their adapter had encoded"
    OF_OTHERS = "requests with an image that another adapter, or none, had encoded"


@computes(ImageCaches, order=140)
def image_cache_facts(history: History) -> dict[str, float]:
    """Return the counters of images that came again after what other caches must notice."""
    sent = [o for o in history.outcomes if o.error is None and has_images(o) and is_comparable(history, o)]
    if not sent:
        return dict.fromkeys(ImageCaches, 0)

    def count(pair: Pair) -> int:
        return sum(any(came_again(other, one) and pair(other, one) for other in history.outcomes) for one in sent)

    return {
        ImageCaches.AFTER_UPDATE: count(other_weights),
        ImageCaches.AFTER_ENCODER: count(across(alone(history.side_resets, ResetScope.ENCODER))),
        ImageCaches.AFTER_PROCESSOR: count(across(alone(history.side_resets, ResetScope.PROCESSOR))),
        ImageCaches.AFTER_PREFIX: count(across(alone(history.resets))),
        ImageCaches.AFTER_RELOAD: count(reloaded),
        ImageCaches.OF_OTHERS: count(lambda other, one: other.partition.name != one.partition.name),
    }


def came_again(other: Outcome, outcome: Outcome) -> bool:
    """Return whether a request that had ended before computed a part of an image, and this one does."""
    return other.finished <= outcome.sent and bool(computed_images(other) & computed_images(outcome))


def computed_images(outcome: Outcome) -> set[int]:
    """Return the images of which a request computed a part."""
    return {image_and_offset(seen)[0] for seen in outcome.prompt[outcome.hit_at_least :] if is_image(seen)}


def other_weights(other: Outcome, outcome: Outcome) -> bool:
    """Return whether two requests used different weights."""
    return not {one.weights for one in other.identities} & {one.weights for one in outcome.identities}


def reloaded(other: Outcome, outcome: Outcome) -> bool:
    """Return whether an adapter had another content under the same name."""
    name, contents = outcome.partition.name, {one.adapter for one in outcome.identities}
    return name is not None and name == other.partition.name and not {o.adapter for o in other.identities} & contents


def alone(resets: Iterable[ResetRecord], *scope: ResetScope) -> list[ResetRecord]:
    """Return the successful resets with exactly this scope."""
    return [reset for reset in resets if reset.success and reset.scope == scope]


def across(resets: list[ResetRecord]) -> Pair:
    """Return whether one of these resets lies between two requests."""
    return lambda other, one: any(other.finished <= reset.began and reset.ended <= one.sent for reset in resets)
