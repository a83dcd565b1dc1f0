"""Hashes of images that leave something out, and caches of images that give another one."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import coordinator, module
from coldproof.adapters.vllm.faults.keys.block_hashes import utils
from coldproof.adapters.vllm.faults.patching import acted, after, around

FAULTS, fault = collector("images")

Keys = list[tuple[Any, ...]]

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


def change_image_keys(patch: Patch, change: Callable[[Keys, Any, int, int], Keys]) -> None:
    """Replace what a block's hash covers of its images, their hashes and positions, by `change(keys, request, start,
    end)`.
    """

    @around(patch, utils(), "_gen_mm_extra_hash_keys")
    def keys(original: Any, request: Any, start: int, end: int, index: int) -> Any:
        found, following = original(request, start, end, index)
        changed = change(found, request, start, end)
        if changed != found:
            acted()
        return changed, following


def leave_out(patch: Patch, kind: str) -> None:
    """Leave the extra keys of a kind out of the hashes of all blocks of a prompt with images."""

    @around(patch, utils(), "generate_block_hash_extra_keys")
    def keys(original: Any, request: Any, *rest: Any) -> Any:
        extra, index = original(request, *rest)
        kept = tuple(key for key in extra or () if key[0] != kind)
        if not request.mm_features or len(kept) == len(extra or ()):
            return extra, index
        acted()
        return kept or None, index


@fault("MM-1", stands_for="ROCm/ATOM PR#1358", cells=CELLS, workers=WORKERS)
def images_are_not_hashed(patch: Patch) -> None:
    """A block's hash covers the placeholders of an image, but not the image."""
    change_image_keys(patch, lambda keys, *_: [(kind, "", *place) for kind, _name, *place in keys])


@fault("MM-1", stands_for="an image that counts where it ends", cells=CELLS, workers=WORKERS)
def images_are_hashed_where_they_end(patch: Patch) -> None:
    """A block's hash covers the images that end in it, and not those that go on in the next one."""

    def ending(keys: Keys, request: Any, start: int, end: int) -> Keys:
        ends = {one.mm_position.offset - start: one.mm_position.length for one in request.mm_features}
        return [key for key in keys if start + key[2] + ends[key[2]] <= end]

    change_image_keys(patch, ending)


@fault("MM-1", stands_for="a salt that only prompts of tokens have", cells=CELLS, workers=WORKERS)
def a_salt_is_dropped_from_images(patch: Patch) -> None:
    """The salt is no part of the hashes of a prompt with images."""
    leave_out(patch, "cache_salt")


@fault("MM-1", stands_for="an adapter that only prompts of tokens have", cells=CELLS, workers=WORKERS)
def an_adapter_is_dropped_from_images(patch: Patch) -> None:
    """The adapter is no part of the hashes of a prompt with images."""
    leave_out(patch, "lora")


@fault("MM-1", stands_for="dynamo PR#8340, dynamo PR#8341", cells=CELLS, workers=WORKERS)
def images_are_hashed_by_their_size(patch: Patch) -> None:
    """An image's hash covers its width and height only."""
    change_image_hash(patch, lambda image, _found: f"{image.size}")


@fault("MM-1", stands_for="LMCache#4086, LMCache#3301", cells=CELLS, workers=WORKERS)
def image_hashes_have_4_bits(patch: Patch) -> None:
    """An image's hash has 4 bits, so that one image in sixteen is taken for another one."""
    change_image_hash(patch, lambda _image, found: found[0])


@fault("MM-1", stands_for="an image that is hashed as it was sent", cells=CELLS, workers=WORKERS)
def image_hashes_ignore_the_processor(patch: Patch) -> None:
    """An image's hash covers what was sent, and not the request's arguments for the processor."""

    @around(patch, module("multimodal.hasher").MultiModalHasher, "hash_kwargs")
    def hashed(original: Any, *args: Any, mm_processor_kwargs: Any = None, **kwargs: Any) -> Any:
        if mm_processor_kwargs:
            acted()
        return original(*args, **kwargs)


@fault("MM-2", stands_for="mlx-vlm PR#1953", cells=CELLS, workers=WORKERS)
def each_image_is_new(patch: Patch) -> None:
    """An image's hash is different each time, so that nothing behind an image is found again."""
    count = itertools.count()
    change_image_hash(patch, lambda _image, found: f"{found}-{next(count)}")


@fault("MM-3", stands_for="an encoder cache smaller than the images of a step", cells=TIGHT_CELLS, workers=WORKERS)
def a_full_encoder_cache_stops_no_chunk(patch: Patch) -> None:
    """The scheduler computes the positions of an image also where its encoder cache has no room for the output."""

    @around(patch, module("v1.core.sched.scheduler").Scheduler, "_try_schedule_encoder_inputs")
    def scheduled(original: Any, this: Any, request: Any, computed: int, new: int, *args: Any, **named: Any) -> Any:
        inputs, left, *rest = original(this, request, computed, new, *args, **named)
        if left < new:
            acted()
        return (inputs, new, *rest)


@fault("MM-3", stands_for="vllm PR#31857", cells=TIGHT_CELLS, workers=WORKERS)
def encoder_outputs_are_freed_while_they_are_needed(patch: Patch) -> None:
    """With prefix caching, the scheduler frees all encoder outputs after each step, also those of images of which a
    part is not computed.
    """

    @after(patch, module("v1.core.sched.scheduler").Scheduler, "schedule")
    def freed(result: Any, this: Any, *_args: Any, **_named: Any) -> None:
        users = this.encoder_cache_manager.cached if this.cache_config.enable_prefix_caching else {}
        needed = [name for name, some in users.items() if some and name not in result.free_encoder_mm_hashes]
        if needed:
            acted()
        result.free_encoder_mm_hashes.extend(needed)


@fault(
    "MM-3",
    stands_for="an image that counts as computed with its first part",
    cells=TIGHT_CELLS,
    workers=WORKERS,
    rare="only for a request that hits the block before the image's next chunk is computed",
)
def a_block_within_a_cut_image_is_published(patch: Patch) -> None:
    """The block in which a chunk ends within an image is published, although its rest is not computed yet."""

    @around(patch, coordinator(), "cache_blocks")
    def publish(original: Any, this: Any, request: Any, tokens: int, *rest: Any, **named: Any) -> None:
        places = [feature.mm_position for feature in request.mm_features]
        size = this.single_type_managers[0].block_size
        whole = min(-(-tokens // size) * size, request.num_tokens)
        if tokens < whole and any(one.offset < tokens < one.offset + one.length for one in places):
            acted()
            tokens = whole
        original(this, request, tokens, *rest, **named)
