"""Prompts with images in vLLM's form, and what the model's processor makes of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from coldproof.adapters.common.image_model import IMAGE_TOKENS, SIDE, image_model
from coldproof.adapters.protocol.images import Arguments, Encoding, SentImage, image_id, image_positions, pixels
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.shape import ImageShape
from coldproof.adapters.vllm.inproc.request import image_prompt
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model

PLACEHOLDER, SHAPE = 260, ImageShape(SIDE, 3)
CAT, DOG = image_id("cat"), image_id("dog")


def request(*prompt: int, hidden: tuple[int, ...] = ()) -> CompletionRequest:
    return CompletionRequest(model="base", prompt=prompt, max_tokens=1, hidden=hidden)


def test_an_image_has_one_placeholder() -> None:
    """The processor expands the placeholder, and other tokens keep their order."""
    found = image_prompt(request(40, *image_positions(CAT, 3), *image_positions(DOG, 3), 41), PLACEHOLDER, SHAPE)
    assert found["prompt_token_ids"] == [40, PLACEHOLDER, PLACEHOLDER, 41]
    assert [one.tobytes() for one in found["multi_modal_data"]["image"]] == [pixels(CAT, SIDE), pixels(DOG, SIDE)]
    assert "multi_modal_uuids" not in found


def test_a_clients_name_is_sent() -> None:
    """Only the image with a name has one."""
    hidden = (SentImage(uuid=7).hidden(), 0, 0, 0, 0, 0)
    prompt = request(*image_positions(CAT, 3), *image_positions(DOG, 3), hidden=hidden)
    assert image_prompt(prompt, PLACEHOLDER, SHAPE)["multi_modal_uuids"] == {"image": ["image-7", None]}


def test_arguments_of_the_processor_are_sent() -> None:
    """The arguments hold for the whole prompt, and the field is left out if there are none."""
    hidden = (SentImage(arguments=Arguments.AS_CONFIGURED).hidden(), 0, 0)
    prompt = request(*image_positions(CAT, 3), hidden=hidden)
    assert image_prompt(prompt, PLACEHOLDER, SHAPE)["mm_processor_kwargs"] == {"do_rescale": False}
    assert "mm_processor_kwargs" not in image_prompt(request(*image_positions(CAT, 3)), PLACEHOLDER, SHAPE)


@pytest.mark.engine
@pytest.mark.parametrize("encoding", [Encoding.PNG, Encoding.BMP])
def test_a_file_keeps_the_pixels(encoding: Encoding) -> None:
    """The bytes of the file are sent too, as in the server."""
    hidden = (SentImage(encoding).hidden(), 0, 0)
    (sent,) = image_prompt(request(*image_positions(CAT, 3), hidden=hidden), PLACEHOLDER, SHAPE)["multi_modal_data"][
        "image"
    ]
    assert sent.media.tobytes() == pixels(CAT, SIDE)
    assert sent.original_bytes[:2] == {Encoding.PNG: b"\x89P", Encoding.BMP: b"BM"}[encoding]


def test_the_processor_of_the_model_follows_its_arguments(tmp_path: Path) -> None:
    """Without arguments the processor passes the pixels on, and each image takes the positions of the shape.

    The processor needs no torchvision.
    """
    transformers: Any = pytest.importorskip("transformers")
    model = image_model(tiny_model(generated_files()), tmp_path / "model")
    processor = transformers.AutoProcessor.from_pretrained(model)
    image = Image.frombytes("RGB", (SIDE, SIDE), pixels(CAT, SIDE))
    token = json.loads((model / "config.json").read_text())["image_token_id"]
    sent = torch.tensor(list(pixels(CAT, SIDE))).reshape(SIDE, SIDE, 3)
    for arguments in Arguments:
        found = processor(
            text="a<image>b",
            images=[image],
            return_tensors="pt",
            input_data_format="channels_last",
            **arguments.fields(),
        )
        assert int((found["input_ids"] >= token).sum()) == IMAGE_TOKENS
        mean, deviation = arguments.look.mean_and_deviation
        seen = found["pixel_values"][0, 0].permute(1, 2, 0)
        assert seen.float().tolist() == ((sent - mean) / deviation).tolist(), arguments
