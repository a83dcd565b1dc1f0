"""The images in the prompts of a history: which may be confused, and what a client said of them."""

from __future__ import annotations

import math
from collections.abc import Iterator

from coldproof.adapters.protocol.images import (
    IMAGE_VARIANTS,
    Encoding,
    SentImage,
    as_sent,
    image_and_offset,
    images_of,
    is_image,
    look_of,
    sent_image,
)
from coldproof.harness.history.records import (
    History,
    Outcome,
    assumed_block,
    common_prefix,
    requests_with_same_identity,
)


def sent_images(outcome: Outcome) -> Iterator[tuple[int, int, SentImage]]:
    """Yield the images of a prompt: first position, image, how it was sent."""
    hidden = outcome.hidden
    for place, image in images_of(outcome.prompt):
        yield place, image, sent_image(hidden[place] if place < len(hidden) else 0)


def same_names_until(other: Outcome, outcome: Outcome) -> float:
    """Return the first position at which clients gave different names to what is in two prompts, or other arguments of
    the processor with it.

    An engine may key its blocks by them, so that no reuse is promised from there on: it need not know that other
    arguments make the same pixels. How an image is sent makes no difference.
    """
    theirs = {place: (sent.uuid, sent.arguments) for place, _, sent in sent_images(other)}
    own = {place: (sent.uuid, sent.arguments) for place, _, sent in sent_images(outcome)}
    return min((place for place in own.keys() & theirs.keys() if own[place] != theirs[place]), default=math.inf)


def has_images(outcome: Outcome) -> bool:
    """Return whether a prompt has images."""
    return bool(outcome.hidden) and any(True for _ in images_of(outcome.prompt))


def hit_image(outcome: Outcome) -> bool:
    """Return whether the cached prefix of a prompt contains a part of an image."""
    return any(map(is_image, outcome.prompt[: outcome.hit_at_least]))


def hit_ends_inside(outcome: Outcome) -> bool:
    """Return whether the cached prefix of a prompt ends within an image."""
    return ends_inside(outcome, outcome.hit_at_least)


def ends_inside(outcome: Outcome, end: int) -> bool:
    """Return whether a part of a prompt that ends before position `end` ends within an image."""
    if not 0 < end < len(outcome.prompt) or not is_image(outcome.prompt[end]):
        return False
    return image_and_offset(outcome.prompt[end])[1] > 0


def other_image(history: History, other: Outcome, outcome: Outcome) -> bool:
    """Return whether two prompts first differ in an image, and a block that it is in does not differ otherwise.

    An engine must look that block up: it is complete, and ends before the last position.
    """
    block = assumed_block(history)
    first = common_prefix(other.prompt, outcome.prompt)
    start, end = first // block * block, (first // block + 1) * block
    if end > len(other.prompt) or end >= len(outcome.prompt) or not is_image(outcome.prompt[first]):
        return False
    pairs = zip(other.prompt[start:end], outcome.prompt[start:end], strict=True)
    return all(mine == theirs or same_place(theirs, mine) for theirs, mine in pairs)


def same_place(left: int, right: int) -> bool:
    """Return whether two positions are equally far within two images."""
    return is_image(left) and is_image(right) and image_and_offset(left)[1] == image_and_offset(right)[1]


def confusable(history: History, outcome: Outcome) -> bool:
    """Return whether another request of the same identity has other images behind the same placeholders."""
    return any(other_image(history, one, outcome) for one in requests_with_same_identity(history, outcome))


def earlier_images(history: History, outcome: Outcome) -> Iterator[tuple[int, SentImage]]:
    """Yield the images that other requests sent before this one ended, and how."""
    for other in history.outcomes:
        if other.request != outcome.request and other.sent < outcome.finished:
            yield from ((image, sent) for _, image, sent in sent_images(other))


def reuses_name(history: History, outcome: Outcome) -> bool:
    """Return whether a request gives an image the name that another one gave other pixels."""
    known = {(sent.uuid, image) for image, sent in earlier_images(history, outcome) if sent.uuid}
    own = [(sent.uuid, image) for _, image, sent in sent_images(outcome) if sent.uuid]
    return any(uuid == name and image != other for uuid, image in own for name, other in known)


def sends_otherwise(history: History, outcome: Outcome) -> bool:
    """Return whether a request sends an image of another one in another encoding."""
    known = {(image, sent.encoding) for image, sent in earlier_images(history, outcome)}
    own = [(image, sent.encoding) for _, image, sent in sent_images(outcome)]
    return any(image == other and encoding != way for image, encoding in own for other, way in known)


def other_background(history: History, outcome: Outcome) -> bool:
    """Return whether a request sends an image in a file with a hole, which shows another colour in another request."""
    known = {image for image, sent in earlier_images(history, outcome) if sent.encoding is Encoding.TRANSPARENT}
    own = {image for _, image, sent in sent_images(outcome) if sent.encoding is Encoding.TRANSPARENT}
    return any(image != one and image // IMAGE_VARIANTS == one // IMAGE_VARIANTS for image in own for one in known)


def other_look(history: History, outcome: Outcome) -> bool:
    """Return whether another request of the same identity has the same pixels in place of an image of this one, and
    the processor made another image of them.
    """
    return any(
        other_image(history, one, outcome) and differs_in_look(one, outcome)
        for one in requests_with_same_identity(history, outcome)
    )


def differs_in_look(other: Outcome, outcome: Outcome) -> bool:
    """Return whether two prompts first differ in what the processor made of the same pixels."""
    first = common_prefix(other.prompt, outcome.prompt)
    theirs, own = (image_and_offset(one.prompt[first])[0] for one in (other, outcome))
    return look_of(theirs) != look_of(own) and as_sent(theirs) == as_sent(own)


def hit_as_told(outcome: Outcome) -> bool:
    """Return whether the cached prefix contains a part of an image that came with arguments of the processor."""
    return hit_image(outcome) and any(sent.arguments for _, _, sent in sent_images(outcome))
