"""The images of the fingerprint worker: digests of pixels in place of embeddings, in an encoder cache like vLLM's.

An image's digest follows from its pixels, never from vLLM's hash of it. The encoder's output follows from that and
from the vision tower: the weights, and the adapter where adapters change towers (--enable-tower-connector-lora). What
the encoder cache gives for an image is compared with what the encoder would compute for the request.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable
from typing import Any

import msgspec
import numpy as np

from coldproof.adapters.vllm.fingerprint.digest import encoder_output, pixel_digest, position_digest, wrong_read_drift
from coldproof.adapters.vllm.fingerprint.engine_errors import encoder_cache_miss

DIGEST = "coldproof_digest"


class Item(msgspec.Struct, frozen=True):
    """An image of a request, which takes the positions from `first` to `end`.

    `name`: vLLM's identifier of it. `patches`: the positions at which the model gets what the encoder computed. At the
    others, which delimit the image, it gets tokens. `has_pixels`: the scheduler sent them; it leaves them out where the
    prefix cache covers the image.
    """

    name: str
    digest: int
    first: int
    end: int
    patches: tuple[int, ...]
    has_pixels: bool

    def needs_output(self, start: int, end: int) -> bool:
        """Return whether a chunk of prefill from `start` to `end` needs what the encoder computed."""
        return self.first < end and start < self.end and any(start <= patch < end for patch in self.patches)


def items_of(new: Any) -> tuple[Item, ...]:
    """Return the images of a request as the scheduler describes it."""
    return tuple(map(item_of, getattr(new, "mm_features", None) or ()))


def item_of(feature: Any) -> Item:
    """Return an image as the scheduler describes it."""
    place = feature.mm_position
    first, end = int(place.offset), int(place.offset + place.length)
    mask = [True] * place.length if place.is_embed is None else place.is_embed.tolist()
    patches = tuple(first + i for i, patch in enumerate(mask) if patch)
    digest = getattr(feature, DIGEST, None) or digest_of(feature)
    return Item(feature.identifier, digest, first, end, patches, feature.data is not None)


def digest_of(feature: Any) -> int:
    """Return the digest of the pixels that the processor made: three channels."""
    pixels = feature.data["pixel_values"].data.float().numpy()
    return pixel_digest(pixels.reshape(-1, *pixels.shape[-2:]))


def keep_digests() -> None:
    """Have the scheduler leave the digest of an image where it does not send the pixels, as vLLM does from 0.32 on."""
    output = importlib.import_module("vllm.v1.core.sched.output")
    original = getattr(output, "strip_covered_mm_data", None)
    if original is None or hasattr(original, DIGEST):
        return

    @functools.wraps(original)
    def strip(features: Any, *args: Any, **kwargs: Any) -> Any:
        sent = original(features, *args, **kwargs)
        for full, left in zip(features or (), sent or (), strict=True):
            if left.data is None and full.data is not None:
                setattr(left, DIGEST, digest_of(full))
        return sent

    setattr(strip, DIGEST, True)
    output.strip_covered_mm_data = strip  # type: ignore[attr-defined]


def with_images(tokens: Iterable[int], items: tuple[Item, ...]) -> tuple[int, ...]:
    """Return the prompt with digests at the positions of images."""
    found = list(tokens)
    for item in items:
        found[item.first : item.end] = [position_digest(item.digest, i) for i in range(item.end - item.first)]
    return tuple(found)


class EncoderCache:
    """What the encoder computed, by vLLM's identifiers of images. The scheduler decides what is computed and freed."""

    def __init__(self) -> None:
        self.outputs: dict[str, int] = {}
        self.cut = self.preempted = 0  # chunks that ended within an image; requests with images that resumed

    def update(self, scheduled: Any, request_of: Callable[[str], tuple[tuple[Item, ...], int]]) -> None:
        """Free and compute what a step says. As in vLLM's own worker, no output comes of an image without pixels.

        `request_of`: returns the images of a request, and its tower.
        """
        for name in getattr(scheduled, "free_encoder_mm_hashes", ()):
            self.outputs.pop(name, None)
        for request, numbers in (getattr(scheduled, "scheduled_encoder_inputs", None) or {}).items():
            items, tower = request_of(request)
            for item in (items[number] for number in numbers):
                if item.has_pixels:
                    self.outputs[item.name] = encoder_output(item.digest, tower)

    def drift(self, items: tuple[Item, ...], start: int, end: int, tower: int) -> int:
        """Return what wrong outputs add to the digests of a chunk: 0 if all are right. `tower`: that of the request.

        Raises EncoderCacheMissError if there is none.
        """
        found = 0
        for item in items:
            self.cut += item.first < end < item.end
            if not item.needs_output(start, end):
                continue
            output = self.outputs.get(item.name)
            if output is None:
                encoder_cache_miss(item.name)
            if output != (wanted := encoder_output(item.digest, tower)):
                wrong, right = np.array([output], np.uint64), np.array([wanted], np.uint64)
                found += wrong_read_drift(wrong, right, np.array([item.first]))
        return found
