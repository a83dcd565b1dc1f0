"""Hashes of images that leave something out, and caches of images that give another one."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module
from coldproof.adapters.vllm.faults.keys.block_hashes import utils
from coldproof.adapters.vllm.faults.patching import acted, around

FAULTS, fault = collector("images")

CELLS, TIGHT_CELLS, WORKERS = ("images",), ("images-tight",), ("fingerprint",)


def change_image_hash(patch: Patch, change: Callable[[Any, str], str]) -> None:
    """Replace the hash of each image by `change(pixels, hash)`."""

    @around(patch, module("multimodal.hasher").MultiModalHasher, "hash_kwargs")
    def hashed(original: Any, *args: Any, **kwargs: Any) -> str:
        found: str = original(*args, **kwargs)
        image = kwargs.get("image")
        if image is None:
            return found
        acted()
        return change(getattr(image, "media", image), found)


def change_image_keys(patch: Patch, change: Callable[[tuple[Any, ...]], tuple[Any, ...]]) -> None:
    """Replace what a block's hash covers of each image, its hash and its position, by `change(key)`."""

    @around(patch, utils(), "_gen_mm_extra_hash_keys")
    def keys(original: Any, *args: Any) -> Any:
        found, index = original(*args)
        if found:
            acted()
        return [change(key) for key in found], index


@fault("MM-1", stands_for="ROCm/ATOM PR#1358", cells=CELLS, workers=WORKERS)
def images_are_not_hashed(patch: Patch) -> None:
    """A block's hash covers the placeholders of an image, but not the image."""
    change_image_keys(patch, lambda key: (key[0], "", *key[2:]))


@fault("MM-1", stands_for="dynamo PR#8340, dynamo PR#8341", cells=CELLS, workers=WORKERS)
def images_are_hashed_by_their_size(patch: Patch) -> None:
    """An image's hash covers its width and height only."""
    change_image_hash(patch, lambda image, _found: f"{image.size}")


@fault("MM-1", stands_for="sglang PR#32404", cells=CELLS, workers=WORKERS)
def the_upper_half_of_an_image_is_not_hashed(patch: Patch) -> None:
    """An image's hash covers only the lower half of its pixels."""

    def lower_half(image: Any, _found: str) -> str:
        data = image.tobytes()
        return hashlib.sha256(data[len(data) // 2 :]).hexdigest()

    change_image_hash(patch, lower_half)


@fault("MM-1", stands_for="LMCache#4086, LMCache#3301", cells=CELLS, workers=WORKERS)
def image_hashes_have_4_bits(patch: Patch) -> None:
    """An image's hash has 4 bits, so that one image in sixteen is taken for another one."""
    change_image_hash(patch, lambda _image, found: found[0])


@fault("MM-2", stands_for="mlx-vlm PR#1953", cells=CELLS, workers=WORKERS)
def each_image_is_new(patch: Patch) -> None:
    """An image's hash is different each time, so that nothing behind an image is found again."""
    count = itertools.count()
    change_image_hash(patch, lambda _image, found: f"{found}-{next(count)}")


@fault("MM-3", stands_for="vllm PR#31857", cells=TIGHT_CELLS, workers=WORKERS)
def encoder_outputs_are_freed_while_they_are_needed(patch: Patch) -> None:
    """The scheduler frees all encoder outputs after each step, also those of images of which a part is not computed."""

    @around(patch, module("v1.core.encoder_cache_manager").EncoderCacheManager, "get_freed_mm_hashes")
    def freed(original: Any, this: Any) -> list[str]:
        found: list[str] = original(this)
        needed = [name for name, users in this.cached.items() if users and name not in found]
        if needed:
            acted()
        return [*found, *needed]
