"""Prompts with embedding rows and images in vLLM's form."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import row_id
from coldproof.adapters.protocol.images import Encoding, SentImage, image_id, image_positions, pixels
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.shape import ImageShape
from coldproof.adapters.vllm.cells import IN_PROCESS, SERVER, VllmCell
from coldproof.adapters.vllm.image_model import IMAGE_TOKENS, SIDE, image_model
from coldproof.adapters.vllm.inproc.request import embeds_prompt, image_prompt
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model

WIDTH, PLACEHOLDER, SHAPE = 8, 260, ImageShape(SIDE, 3)
A, B = row_id("a"), row_id("b")
CAT, DOG = image_id("cat"), image_id("dog")


def request(*prompt: int, hidden: tuple[int, ...] = ()) -> CompletionRequest:
    return CompletionRequest(model="base", prompt=prompt, max_tokens=1, hidden=hidden)


def test_a_mixed_prompt_has_all_rows_all_ids_and_a_mask() -> None:
    """Of each position both, also what the mask hides."""
    found = embeds_prompt(request(40, A, 41, hidden=(B, 7, 0)), torch.bfloat16, WIDTH)
    assert found["prompt_token_ids"] == [40, 7, 41]
    assert found["prompt_is_token_ids"] == [True, False, True]
    assert found["prompt_embeds"].dtype is torch.bfloat16
    assert torch.equal(found["prompt_embeds"].float(), torch.from_numpy(row_values((B, A, 0), WIDTH)))


def test_a_cold_request_hides_nothing() -> None:
    """The oracle asks about what the model sees: zeros are beside it."""
    found = embeds_prompt(request(40, A), torch.float32, WIDTH)
    assert found["prompt_token_ids"] == [40, 0]
    assert not found["prompt_embeds"][0].any()


def test_a_prompt_of_rows_alone_has_no_ids() -> None:
    """As a client of the completions endpoint sends it."""
    assert list(embeds_prompt(request(A, B, hidden=(1, 2)), torch.float32, WIDTH)) == ["prompt_embeds"]


def test_an_image_has_one_placeholder() -> None:
    """The processor makes several of it; other tokens stay where they are."""
    found = image_prompt(request(40, *image_positions(CAT, 3), *image_positions(DOG, 3), 41), PLACEHOLDER, SHAPE)
    assert found["prompt_token_ids"] == [40, PLACEHOLDER, PLACEHOLDER, 41]
    assert [one.tobytes() for one in found["multi_modal_data"]["image"]] == [pixels(CAT, SIDE), pixels(DOG, SIDE)]
    assert "multi_modal_uuids" not in found


def test_a_clients_name_is_sent() -> None:
    """For its image only."""
    hidden = (SentImage(uuid=7).hidden(), 0, 0, 0, 0, 0)
    prompt = request(*image_positions(CAT, 3), *image_positions(DOG, 3), hidden=hidden)
    assert image_prompt(prompt, PLACEHOLDER, SHAPE)["multi_modal_uuids"] == {"image": ["image-7", None]}


@pytest.mark.engine
@pytest.mark.parametrize("encoding", [Encoding.PNG, Encoding.BMP])
def test_a_file_keeps_the_pixels(encoding: Encoding) -> None:
    """And its bytes come along, as they do in the server."""
    hidden = (SentImage(encoding).hidden(), 0, 0)
    (sent,) = image_prompt(request(*image_positions(CAT, 3), hidden=hidden), PLACEHOLDER, SHAPE)["multi_modal_data"][
        "image"
    ]
    assert sent.media.tobytes() == pixels(CAT, SIDE)
    assert sent.original_bytes[:2] == {Encoding.PNG: b"\x89P", Encoding.BMP: b"BM"}[encoding]


def test_the_processor_of_the_model_passes_the_pixels_on(tmp_path: Path) -> None:
    """Without torchvision, and an image takes as many positions as the shape says."""
    transformers: Any = pytest.importorskip("transformers")
    model = image_model(tiny_model(generated_files()), tmp_path / "model")
    processor = transformers.AutoProcessor.from_pretrained(model)
    image = Image.frombytes("RGB", (SIDE, SIDE), pixels(CAT, SIDE))
    found = processor(text="a<image>b", images=[image], return_tensors="pt", input_data_format="channels_last")
    token = json.loads((model / "config.json").read_text())["image_token_id"]
    assert int((found["input_ids"] >= token).sum()) == IMAGE_TOKENS
    seen = found["pixel_values"][0, 0].permute(1, 2, 0).to(torch.uint8).numpy().tobytes()
    assert seen == pixels(CAT, SIDE)


@pytest.mark.parametrize(("engine", "fits"), [(IN_PROCESS, True), (SERVER, False)])
def test_only_the_adapter_in_process_runs_the_cells_with_content(engine: str, fits: bool) -> None:
    """The reason names it."""
    cell = VllmCell(name="content", about="", own_answers=True)
    assert cell.fits(engine, "model") is fits
    assert (IN_PROCESS in cell.obstacle(engine, "model")) is not fits
