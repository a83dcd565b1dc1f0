"""Ids of the positions of an image in a prompt: which image it is, and how far within it.

The ids of a prompt name what the model sees at each position (see `embedding_rows.py`). An image takes several
positions, and its pixels follow from its id. Its pixels are a few colours, so that people can tell images apart.
"""

from __future__ import annotations

import enum
import functools
import hashlib
from collections.abc import Iterator, Sequence
from typing import NamedTuple

FIRST_IMAGE = 1 << 50  # above all rows; ids stay below 2**53, so that every reader of JSON keeps them exact
IMAGE_POSITIONS = 1 << 8
IMAGE_SEEDS = 1 << 30
IMAGE_VARIANTS = 1 << 8
PATCHES = 4  # colours in each direction
CHANGE = 128  # of one channel of one pixel


class Encoding(enum.IntEnum):
    """How a client sends the pixels. All of them keep every pixel."""

    PIXELS = 0  # a decoded image
    PNG = 1
    BMP = 2


class SentImage(NamedTuple):
    """What a request says of an image beside its pixels. `uuid`: the number of the client's name for it; 0: none."""

    encoding: Encoding = Encoding.PIXELS
    uuid: int = 0

    def hidden(self) -> int:
        """Return this as a number: what the first position of the image carries without the model seeing it."""
        return self.uuid * len(Encoding) + self.encoding


def sent_image(hidden: int) -> SentImage:
    """Return what `SentImage.hidden` made a number of."""
    uuid, encoding = divmod(hidden, len(Encoding))
    return SentImage(Encoding(encoding), uuid)


def image_id(name: str, variant: int = 0) -> int:
    """Return the id of an image. `variant`: 0, or the number of the pixel, counted from 1, that differs."""
    seed = int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big")
    return seed % IMAGE_SEEDS * IMAGE_VARIANTS + variant


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


@functools.lru_cache(maxsize=4096)
def pixels(image: int, side: int) -> bytes:
    """Return the pixels of a square image, row by row, three bytes each: patches of one colour."""
    seed, variant = divmod(image, IMAGE_VARIANTS)
    colours = hashlib.shake_128(f"image {seed}".encode()).digest(3 * PATCHES * PATCHES)
    found = bytearray()
    for row in range(side):
        for column in range(side):
            patch = row * PATCHES // side * PATCHES + column * PATCHES // side
            found += colours[3 * patch : 3 * patch + 3]
    if variant:
        found[3 * ((variant - 1) * 7 % (side * side))] ^= CHANGE
    return bytes(found)
