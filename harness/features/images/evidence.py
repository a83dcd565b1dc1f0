"""Evidence about prompts with images. Pure."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.metrics import increase
from coldproof.harness.features.images.workloads import PREEMPTED_IMAGES
from coldproof.harness.history.images import (
    confusable,
    ends_inside,
    has_images,
    hit_as_told,
    hit_ends_inside,
    hit_image,
    other_background,
    other_look,
    reuses_name,
    sends_otherwise,
)
from coldproof.harness.history.records import History
from coldproof.harness.judgement.counters import Evidence, computes
from coldproof.harness.judgement.reference_cache import lost_tokens


class Images(Evidence):
    """Prompts with images."""

    PROMPTS = "prompts with images"
    HITS = "hits that reached into an image", Capability.IMAGES
    HITS_INSIDE = "hits that ended within an image"
    OTHER_IMAGE = "requests with another image behind the placeholders of an earlier one"
    SAME_UUID = "requests that give an image the name of another one"
    RECODED = "requests that send an image of another one in another file format"
    OTHER_LOOK = "requests with other arguments of the processor behind the placeholders of an earlier one"
    OTHER_BACKGROUND = "requests with a file of an earlier one, and another colour behind its transparent pixels"
    TOLD_HITS = "hits that reached into an image with arguments of the processor"
    CUT_IMAGES = "prefill chunks that ended within an image"
    PREEMPTED_IMAGES = PREEMPTED_IMAGES
    EVICTED_IMAGES = "hits that ended within an image whose other part was evicted"


@computes(Images, order=130)
def image_facts(history: History) -> dict[str, float]:
    """Return the counters of prompts with images, of hits in them, and of images that a wrong key would confuse."""
    outcomes = [o for o in history.outcomes if o.error is None and has_images(o)]
    return {
        Images.PROMPTS: len(outcomes),
        Images.HITS: sum(map(hit_image, outcomes)),
        Images.HITS_INSIDE: sum(map(hit_ends_inside, outcomes)),
        Images.OTHER_IMAGE: sum(confusable(history, o) for o in outcomes),
        Images.SAME_UUID: sum(reuses_name(history, o) for o in outcomes),
        Images.RECODED: sum(sends_otherwise(history, o) for o in outcomes),
        Images.OTHER_LOOK: sum(other_look(history, o) for o in outcomes),
        Images.OTHER_BACKGROUND: sum(other_background(history, o) for o in outcomes),
        Images.TOLD_HITS: sum(map(hit_as_told, outcomes)),
        Images.CUT_IMAGES: cut_images(history) if outcomes else 0,
        Images.PREEMPTED_IMAGES: sum(bool(o.preemptions) for o in outcomes) or counted(history, "preempted_images"),
        Images.EVICTED_IMAGES: sum(hit_ends_inside(o) and lost_tokens(history, o) > 0 for o in outcomes),
    }


def counted(history: History, name: str) -> int:
    """Return how far a counter of the engine rose over a history; 0 if it has none."""
    if not history.steps:
        return 0
    return int(increase(getattr(history.steps[0].before, name), getattr(history.steps[-1].after, name)) or 0)


def cut_images(history: History) -> int:
    """Return the number of prefill chunks that ended within an image, where the engine records its steps or counts
    them.
    """
    if history.engine_steps is None:
        return counted(history, "cut_images")
    of = {str(o.request): o for o in history.outcomes}
    chunks = [chunk for step in history.engine_steps or () for chunk in step.chunks if chunk.end < chunk.target]
    return sum(chunk.request in of and ends_inside(of[chunk.request], chunk.end) for chunk in chunks)
