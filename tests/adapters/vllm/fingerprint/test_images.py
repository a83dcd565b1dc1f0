"""How the fingerprint worker handles images: digests of pixels, and an encoder cache that the scheduler controls."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from coldproof.adapters.protocol.images import image_id, image_positions, pixels
from coldproof.adapters.protocol.shape import ImageShape
from coldproof.adapters.vllm.fingerprint.engine_errors import EncoderCacheMissError
from coldproof.adapters.vllm.fingerprint.images import EncoderCache, items_of, keep_digests, with_images
from coldproof.adapters.vllm.fingerprint.sequences import prompt_of
from coldproof.harness.execution.oracles.closed_form import computed, leaves
from coldproof.harness.judgement.oracle import Question

SHAPE = ImageShape(8, 4)
TOWER = 7


def feature(name: str, *, at: int, hashed: str | None = None, dtype: Any = torch.uint8) -> Any:
    """Return an image as vLLM's scheduler describes it: pixels after processing, and vLLM's identifier."""
    square = np.frombuffer(pixels(image_id(name), SHAPE.side), np.uint8).reshape(SHAPE.side, SHAPE.side, 3)
    data = {"pixel_values": SimpleNamespace(data=torch.from_numpy(square.transpose(2, 0, 1).copy()).to(dtype))}
    place = SimpleNamespace(offset=at, length=SHAPE.tokens, is_embed=None)
    return SimpleNamespace(identifier=hashed or name, data=data, mm_position=place)


def delimited(name: str, *, at: int) -> Any:
    """Return an image between two delimiter tokens."""
    found = feature(name, at=at)
    found.mm_position = SimpleNamespace(offset=at, length=6, is_embed=torch.tensor([False, *[True] * 4, False]))
    return found


def new(*features: Any, length: int = 12) -> Any:
    return SimpleNamespace(prompt_token_ids=[40] * length, mm_features=list(features))


def step(*, free: tuple[str, ...] = (), **inputs: list[int]) -> Any:
    return SimpleNamespace(free_encoder_mm_hashes=list(free), scheduled_encoder_inputs=inputs)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.float32])
def test_the_closed_form_sees_what_the_worker_sees(dtype: Any) -> None:
    """Both digest the pixels after processing, whatever vLLM's identifier is."""
    request = new(feature("cat", at=1, hashed="anything", dtype=dtype), feature("dog", at=6, dtype=dtype))
    cat, dog = (image_positions(image_id(name), SHAPE.tokens) for name in ("cat", "dog"))
    seen = (40, *cat, 40, *dog, 40, 40)
    assert prompt_of(request, items_of(request)) == leaves(seen, None, SHAPE)


def test_an_answer_depends_on_the_image_and_its_place() -> None:
    """An answer depends on the image, its position and every pixel."""
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
    """A chunk needs only the output of the images that it reaches. A miss ends the engine, as in vLLM."""
    items, cache = items_of(new(feature("cat", at=1), feature("dog", at=6))), EncoderCache()
    assert cache.drift(items, 0, 1, TOWER) == 0
    with pytest.raises(EncoderCacheMissError, match="Encoder cache miss for cat"):
        cache.drift(items, 0, 2, TOWER)
    cache.update(step(r=[0]), {"r": (items, TOWER)}.__getitem__)
    assert cache.drift(items, 0, 6, TOWER) == cache.drift(items, 4, 6, TOWER) == 0
    assert cache.cut == 1, "the chunk that ended at 2"
    with pytest.raises(EncoderCacheMissError, match="dog"):
        cache.drift(items, 5, 7, TOWER)
    assert cache.cut == 2, "the last chunk ended within the second image"


def test_the_tokens_that_delimit_an_image_need_no_output() -> None:
    """Delimiters are not patches, but count as parts of the image."""
    items, cache = items_of(new(delimited("cat", at=1))), EncoderCache()
    assert cache.drift(items, 0, 2, TOWER) == cache.drift(items, 6, 9, TOWER) == 0
    for start, end in ((0, 3), (5, 7)):
        with pytest.raises(EncoderCacheMissError, match="cat"):
            cache.drift(items, start, end, TOWER)
    assert prompt_of(new(delimited("cat", at=1)), items)[1:7] == with_images([40] * 7, items)[1:7] != (40,) * 6


def test_pixels_that_the_scheduler_leaves_out_are_known_by_their_digest() -> None:
    """The encoder cannot compute anything from pixels that were left out."""
    output: Any = pytest.importorskip("vllm.v1.core.sched.output")
    keep_digests()
    inputs: Any = pytest.importorskip("vllm.multimodal.inputs")
    cat = feature("cat", at=1)
    place = inputs.PlaceholderRange(offset=1, length=SHAPE.tokens)
    full = inputs.MultiModalFeatureSpec(cat.data, "image", "cat", place)
    (left,) = output.strip_covered_mm_data([full], 8)
    assert left.data is None
    whole, known = items_of(new(full))[0], items_of(new(left))[0]
    assert (known.digest, known.has_pixels, whole.has_pixels) == (whole.digest, False, True)
    cache = EncoderCache()
    cache.update(step(r=[0]), {"r": ((known,), TOWER)}.__getitem__)
    with pytest.raises(EncoderCacheMissError):
        cache.drift((known,), 0, 5, TOWER)


def test_a_freed_output_is_not_available() -> None:
    """Outputs are freed before the images of the same step are computed."""
    items, cache = items_of(new(feature("cat", at=1))), EncoderCache()
    cache.update(step(r=[0]), {"r": (items, TOWER)}.__getitem__)
    cache.update(step(free=("cat",), r=[0]), {"r": (items, TOWER)}.__getitem__)
    assert cache.drift(items, 0, 5, TOWER) == 0
    cache.update(step(free=("cat",)), {"r": (items, TOWER)}.__getitem__)
    with pytest.raises(EncoderCacheMissError):
        cache.drift(items, 0, 5, TOWER)


def test_the_output_of_another_image_under_the_same_name_is_wrong() -> None:
    """The wrong output changes every later token."""
    cat, dog = items_of(new(feature("cat", at=1, hashed="x"))), items_of(new(feature("dog", at=1, hashed="x")))
    cache = EncoderCache()
    cache.update(step(a=[0]), {"a": (cat, TOWER)}.__getitem__)
    assert cache.drift(cat, 0, 5, TOWER) == 0
    assert cache.drift(dog, 0, 5, TOWER) != 0


def test_the_output_of_another_image_encoder_is_wrong() -> None:
    """Other weights, or an adapter that changes the encoder, give another output for the same pixels."""
    items, cache = items_of(new(feature("cat", at=1))), EncoderCache()
    cache.update(step(r=[0]), {"r": (items, TOWER)}.__getitem__)
    assert cache.drift(items, 0, 5, TOWER) == 0
    assert cache.drift(items, 0, 5, TOWER + 1) != 0
