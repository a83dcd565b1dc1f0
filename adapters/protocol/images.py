"""Ids of the positions of an image in a prompt: which image it is, and how far within it.

The ids of a prompt name what the model sees at each position (see `embedding_rows.py`). An image takes several
positions, and its pixels follow from its id. Its pixels are a few colours, so that people can tell images apart. What
the model sees is what the engine's processor makes of them, as the request's arguments tell it: its look.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

FIRST_IMAGE = 1 << 50  # above all rows; ids stay below 2**53, so that every reader of JSON keeps them exact
IMAGE_POSITIONS = 1 << 8
IMAGE_SEEDS = 1 << 30
IMAGE_VARIANTS = 1 << 8
IMAGES_OF_A_LOOK = IMAGE_SEEDS * IMAGE_VARIANTS
UUIDS = 1 << 33  # numbers of a client's name for an image
PATCHES = 4  # colours in each direction
CHANGE = 128  # of one channel of one pixel


class Encoding(enum.IntEnum):
    """How a client sends the pixels. All of them keep every pixel."""

    PIXELS = 0  # a decoded image
    PNG = 1
    BMP = 2
    PALETTE = 3  # numbers of colours, whose table comes beside them: images with equal numbers may differ
    TRANSPARENT = 4  # the first pixel is a hole, and the request names the colour behind it: files may be equal, too


def numbers_and_colours(pixels: bytes) -> tuple[bytes, bytes]:
    """Return the pixels as numbers of colours, in the order in which the colours come first, and the colours."""
    colours = [pixels[start : start + 3] for start in range(0, len(pixels), 3)]
    table = {colour: number for number, colour in enumerate(dict.fromkeys(colours))}
    return bytes(table[colour] for colour in colours), b"".join(table)


class Look(enum.IntEnum):
    """What the model sees of the pixels. `mean_and_deviation`: it sees (pixel - mean) / deviation, which is exact in
    float32 and bfloat16.
    """

    AS_SENT = 0
    DOUBLED = 1
    HALVED = 2
    LOWERED = 3

    @property
    def mean_and_deviation(self) -> tuple[float, float]:
        """Return the numbers that turn a pixel into what the model sees."""
        return ((0.0, 1.0), (0.0, 0.5), (1.0, 2.0), (2.0, 1.0))[self]


class Arguments(enum.IntEnum):
    """What a request tells the engine's processor to do with its images, by the names of Hugging Face's processors.

    Some arguments differ and make the same pixels. Those of HALVED and LOWERED have equal values under other names.
    """

    NONE = 0
    AS_CONFIGURED = 1
    RESCALED = 2
    NORMALIZED = 3
    HALVED = 4
    LOWERED = 5

    @property
    def look(self) -> Look:
        """Return what the model sees with them."""
        looks = (Look.AS_SENT, Look.AS_SENT, Look.DOUBLED, Look.DOUBLED, Look.HALVED, Look.LOWERED)
        return looks[self]

    def fields(self) -> dict[str, Any]:
        """Return them as a request carries them. Without them, the processor does as it is configured: nothing."""
        mean, deviation = self.look.mean_and_deviation
        if self is Arguments.NONE:
            return {}
        if self is Arguments.AS_CONFIGURED:
            return {"do_rescale": False}
        if self is Arguments.RESCALED:
            return {"do_rescale": True, "rescale_factor": 1 / deviation}
        return {"do_normalize": True, "image_mean": [mean] * 3, "image_std": [deviation] * 3}

    def text(self) -> str:
        """Return them for people; an empty string for NONE."""
        return ", ".join(f"{name}={value}" for name, value in self.fields().items())


class SentImage(NamedTuple):
    """What a request says of an image beside its pixels. `uuid`: the number of the client's name for it; 0: none."""

    encoding: Encoding = Encoding.PIXELS
    uuid: int = 0
    arguments: Arguments = Arguments.NONE

    def hidden(self) -> int:
        """Return this as a number: what the first position of the image carries without the model seeing it."""
        return (self.arguments * UUIDS + self.uuid) * len(Encoding) + self.encoding


def sent_image(hidden: int) -> SentImage:
    """Return what `SentImage.hidden` made a number of."""
    rest, encoding = divmod(hidden, len(Encoding))
    arguments, uuid = divmod(rest, UUIDS)
    return SentImage(Encoding(encoding), uuid, Arguments(arguments))


def image_id(name: str, variant: int = 0, look: Look = Look.AS_SENT) -> int:
    """Return the id of an image. `variant`: 0, or the number of the pixel, counted from 1, that differs."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return look * IMAGES_OF_A_LOOK + seed % IMAGE_SEEDS * IMAGE_VARIANTS + variant


def look_of(image: int) -> Look:
    """Return what the model sees of an image's pixels."""
    return Look(image // IMAGES_OF_A_LOOK)


def uuid_number(name: str) -> int:
    """Return the number of a client's name for an image, from 1."""
    return 1 + int.from_bytes(hashlib.sha256(name.encode()).digest()[:4], "big")


def image_positions(image: int, count: int) -> tuple[int, ...]:
    """Return the ids of the positions of an image that takes `count` of them."""
    return tuple(FIRST_IMAGE + image * IMAGE_POSITIONS + offset for offset in range(count))


def is_image(number: int) -> bool:
    """Return whether an id of a prompt is a position of an image."""
    return number >= FIRST_IMAGE


def image_and_offset(number: int) -> tuple[int, int]:
    """Return the image of a position, and how far within it the position is."""
    return divmod(number - FIRST_IMAGE, IMAGE_POSITIONS)


def has_images(prompt: Sequence[int]) -> bool:
    """Return whether a prompt contains images."""
    return max(prompt, default=0) >= FIRST_IMAGE


def images_of(prompt: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the images of a prompt: the first position of each, and its id."""
    for place, number in enumerate(prompt):
        if is_image(number) and not image_and_offset(number)[1]:
            yield place, image_and_offset(number)[0]


def arguments_of(prompt: Sequence[int], hidden: Sequence[int]) -> Arguments:
    """Return what a request tells the processor: of one prompt, it processes all images alike.

    `hidden`: what the request carries at each position without the model seeing it. Where it is unknown or empty, these
    are arguments with which the model sees the images. Raises ValueError if there are none for all of them.
    """
    found = set()
    for place, image in images_of(prompt):
        sent, look = sent_image(hidden[place] if hidden else 0).arguments, look_of(image)
        found.add(sent if sent.look is look else next(one for one in Arguments if one.look is look))
    if len(found) > 1:
        raise ValueError("the images of one prompt have several arguments of the processor")
    return found.pop() if found else Arguments.NONE


def background_of(prompt: Sequence[int], hidden: Sequence[int], side: int) -> tuple[int, ...]:
    """Return the colour behind the holes of a prompt's images: of one prompt, all have the same. () if none has one.

    Raises ValueError if there is no colour for all of them.
    """
    sent = ((image, sent_image(hidden[place] if hidden else 0)) for place, image in images_of(prompt))
    found = {tuple(pixels(image, side)[:3]) for image, one in sent if one.encoding is Encoding.TRANSPARENT}
    if len(found) > 1:
        raise ValueError("the images of one prompt have several colours behind them")
    return found.pop() if found else ()


def as_sent(image: int) -> int:
    """Return the image of the same pixels of which the model sees what was sent."""
    return image % IMAGES_OF_A_LOOK


@functools.lru_cache(maxsize=4096)
def pixels(image: int, side: int) -> bytes:
    """Return the pixels of a square image as they are sent, row by row, three bytes each: patches of one colour."""
    seed, variant = divmod(as_sent(image), IMAGE_VARIANTS)
    colours = hashlib.shake_128(f"image {seed}".encode()).digest(3 * PATCHES * PATCHES)
    found = bytearray()
    for row in range(side):
        for column in range(side):
            patch = row * PATCHES // side * PATCHES + column * PATCHES // side
            found += colours[3 * patch : 3 * patch + 3]
    if variant:
        found[3 * ((variant - 1) * 7 % (side * side))] ^= CHANGE
    return bytes(found)
