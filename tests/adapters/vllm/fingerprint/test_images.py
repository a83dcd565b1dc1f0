"""What the fingerprint worker makes of images: digests of pixels, and an encoder cache that the scheduler controls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coldproof.adapters.protocol.images import image_id, image_positions, pixels
from coldproof.adapters.protocol.shape import ImageShape
from coldproof.adapters.vllm.fingerprint.images import EncoderCache, items_of
from coldproof.adapters.vllm.fingerprint.sequences import prompt_of
from coldproof.harness.execution.oracles.closed_form import computed, leaves
from coldproof.harness.judgement.oracle import Question

SHAPE = ImageShape(8, 4)


def feature(name: str, *, at: int, hashed: str | None = None, dtype: Any = torch.uint8) -> Any:
    """Return an image as vLLM's scheduler describes it: pixels that the processor made, and its own name of them."""
    square = np.frombuffer(pixels(image_id(name), SHAPE.side), np.uint8).reshape(SHAPE.side, SHAPE.side, 3)
    data = {"pixel_values": SimpleNamespace(data=torch.from_numpy(square.transpose(2, 0, 1).copy()).to(dtype))}
    place = SimpleNamespace(offset=at, length=SHAPE.tokens, is_embed=None)
    return SimpleNamespace(identifier=hashed or name, data=data, mm_position=place)


def new(*features: Any, length: int = 12) -> Any:
    return SimpleNamespace(prompt_token_ids=[40] * length, mm_features=list(features))


def step(*, free: tuple[str, ...] = (), **inputs: list[int]) -> Any:
    return SimpleNamespace(free_encoder_mm_hashes=list(free), scheduled_encoder_inputs=inputs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_closed_form_sees_what_the_worker_sees(dtype: Any) -> None:
    """The pixels after processing, whatever vLLM calls them."""
    request = new(feature("cat", at=1, hashed="anything", dtype=dtype), feature("dog", at=6, dtype=dtype))
    cat, dog = (image_positions(image_id(name), SHAPE.tokens) for name in ("cat", "dog"))
    seen = (40, *cat, 40, *dog, 40, 40)
    assert prompt_of(request, items_of(request)) == leaves(seen, None, SHAPE)


def test_an_answer_depends_on_the_image_and_its_place() -> None:
    """And on one pixel."""
    cat, dog, spot = (image_positions(image, 4) for image in (image_id("cat"), image_id("dog"), image_id("cat", 3)))
    prompts = [
        (*cat, 40, *dog, 40),
        (*dog, 40, *cat, 40),
        (*cat, 40, *cat, 40),
        (*spot, 40, *dog, 40),
        (40, *cat, *dog),
    ]
    assert len({computed(Question(p, None, 12), None, SHAPE).ids for p in prompts}) == len(prompts)


def test_a_chunk_needs_the_encoders_output_of_its_images_only() -> None:
    """Computed in this step or before, not of images that it does not reach; a miss ends the engine, as vLLM's does."""
    items, cache = items_of(new(feature("cat", at=1), feature("dog", at=6))), EncoderCache()
    assert cache.drift(items, 0, 1) == 0
    with pytest.raises(RuntimeError, match="Encoder cache miss for cat"):
        cache.drift(items, 0, 2)
    cache.update(step(r=[0]), {"r": items}.__getitem__)
    assert cache.drift(items, 0, 6) == cache.drift(items, 4, 6) == 0
    with pytest.raises(RuntimeError, match="dog"):
        cache.drift(items, 5, 7)


def test_an_output_that_was_freed_is_gone() -> None:
    """Before the images of the same step are computed."""
    items, cache = items_of(new(feature("cat", at=1))), EncoderCache()
    cache.update(step(r=[0]), {"r": items}.__getitem__)
    cache.update(step(free=("cat",), r=[0]), {"r": items}.__getitem__)
    assert cache.drift(items, 0, 5) == 0
    cache.update(step(free=("cat",)), {"r": items}.__getitem__)
    with pytest.raises(RuntimeError):
        cache.drift(items, 0, 5)


def test_the_output_of_another_image_under_the_same_name_is_wrong() -> None:
    """It changes all that follows from it."""
    cat, dog = items_of(new(feature("cat", at=1, hashed="x"))), items_of(new(feature("dog", at=1, hashed="x")))
    cache = EncoderCache()
    cache.update(step(a=[0]), {"a": cat}.__getitem__)
    assert cache.drift(cat, 0, 5) == 0
    assert cache.drift(dog, 0, 5) != 0
