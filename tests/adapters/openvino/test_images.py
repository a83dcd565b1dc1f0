"""Prompts with images: what the engine receives, what hits, and a script that sends the same."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.histories import burst
from support.scripts import case_of, module_of
from support.start_options import start_options

from coldproof.adapters.openvino import engine
from coldproof.adapters.openvino.content import tensors_of
from coldproof.adapters.openvino.engine import OpenVinoEngine
from coldproof.adapters.openvino.setup import IMAGES, sees
from coldproof.adapters.openvino.spec import CELLS
from coldproof.adapters.openvino.vision_ir import POSITIONS_OF_IMAGE, SIDE, can_see, text_of_images
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.images import Encoding, SentImage, image_id, image_positions, pixels
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.protocol.shape import ImageShape
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import tiny_model
from coldproof.harness.workload.steps import Image, Prompt, Request, Segment

CELL = next(cell for cell in CELLS if IMAGES in cell.arguments)
BLOCK = 32
CAT, DOG = image_id("cat"), image_id("dog")
needs_package = pytest.mark.skipif(
    importlib.util.find_spec("openvino_genai") is None, reason="openvino-genai is not installed"
)


def new_request(*parts: str | int, encoding: Encoding = Encoding.PIXELS) -> CompletionRequest:
    """Return a request whose prompt has texts and images, given by their ids."""
    seen: list[int] = []
    hidden: list[int] = []
    for part in parts:
        if isinstance(part, str):
            seen += map(ord, part)
            hidden += [0] * len(part)
        else:
            seen += image_positions(part, POSITIONS_OF_IMAGE)
            hidden += [SentImage(encoding).hidden()] + [0] * (POSITIONS_OF_IMAGE - 1)
    return CompletionRequest(model="base", prompt=tuple(seen), hidden=tuple(hidden), max_tokens=8)


def test_a_prompt_is_a_text_with_a_tag_for_each_image() -> None:
    """The pixels are sent in order, in tensors whose rank shows how they were sent."""
    request = new_request("a b", CAT, DOG, "c", encoding=Encoding.PNG)
    assert text_of_images(request.prompt) == "a b<image><image>c"
    assert list(tensors_of(request, SIDE)) == [(pixels(one, SIDE), (SIDE, SIDE, 3)) for one in (CAT, DOG)]
    (sent,) = tensors_of(new_request(CAT), SIDE)
    assert sent == (pixels(CAT, SIDE), (1, SIDE, SIDE, 3))


def test_images_need_a_model_whose_tokens_are_bytes(tmp_path: Path) -> None:
    """Images need the cell's argument too. Other models are written without an image encoder."""
    model = tiny_model(generated_files())
    assert can_see(model)
    assert sees(str(model), CELL.arguments)
    assert not sees(str(model), ())
    assert not can_see(tmp_path)
    (tmp_path / "config.json").write_text('{"vocab_size": 32000}')
    assert not sees(str(tmp_path), CELL.arguments)


@pytest.fixture(scope="module")
def image_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenVinoEngine]:
    """Yield an engine that accepts images."""
    log, model = tmp_path_factory.mktemp("seeing") / "engine.log", str(tiny_model(generated_files()))
    started = engine.start(start_options(CELL, *CELL.arguments, log=log, model=model))
    yield started
    started.stop()


def answer(image_engine: OpenVinoEngine, request: CompletionRequest) -> tuple[list[int], int | None]:
    """Return the tokens of an answer and the number of cached tokens."""
    found = image_engine.complete(request)
    assert isinstance(found, Completion)
    return [token.id for token in found.tokens], found.cached_tokens


@needs_package
def test_hits_on_images_are_counted_to_the_position(image_engine: OpenVinoEngine) -> None:
    """The same image hits in any encoding, up to a block boundary inside it if other text follows. Another image
    does not.
    """
    before, behind = "b" * (BLOCK - 5), "t" * 30
    first, cold = answer(image_engine, new_request(before, CAT, behind))
    length = len(before) + POSITIONS_OF_IMAGE + len(behind)
    assert cold == 0
    for encoding in Encoding:
        assert answer(image_engine, new_request(before, CAT, behind, encoding=encoding)) == (
            first,
            length // BLOCK * BLOCK,
        )
    assert answer(image_engine, new_request(before, CAT, "u" * 30))[1] == BLOCK, "a hit that ends within the image"
    other, cached = answer(image_engine, new_request(before, DOG, behind))
    assert cached == 0
    assert other != first


@needs_package
def test_capabilities_about_images(image_engine: OpenVinoEngine) -> None:
    """With one token per step no request is preempted, and embeddings have no ids to echo."""
    assert image_engine.shape.image == ImageShape(SIDE, POSITIONS_OF_IMAGE)
    present = {one for one, support in image_engine.capabilities.items() if support.present}
    assert {Capability.IMAGES, Capability.IMAGE_PARTS, Capability.CACHED_TOKENS} <= present
    assert not present & {Capability.PREEMPTION_COUNTS, Capability.PROMPT_LOGPROBS, Capability.IMAGE_UUIDS}


@needs_package
def test_a_script_sends_the_same_images_to_openvino(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script sends the same text and pixels as the adapter."""
    image = Segment("image 0", POSITIONS_OF_IMAGE, image=Image("cat", pixel=1, encoding=Encoding.PNG))
    case = case_of("openvino", burst(Request(prompt=Prompt((Segment("text", 3), image)))))
    monkeypatch.chdir(tmp_path)
    script = module_of(case)
    pipeline = script["Pipeline"].__new__(script["Pipeline"])
    story = script["Story"](None)
    story.nonce = "n"
    pipeline.numpy, pipeline.openvino = (importlib.import_module(name) for name in ("numpy", "openvino"))
    shown = script["Image"]("cat", pixel=1, encoding=script["Encoding"].PNG)
    own = [script["Segment"]("text", 3), script["Segment"]("image 0", POSITIONS_OF_IMAGE, image=shown)]
    sent = story.prepared({"prompt": own})
    ids = sent["ids"]
    hidden = [0] * (len(ids) - POSITIONS_OF_IMAGE) + [SentImage(Encoding.PNG).hidden()] + [0] * (POSITIONS_OF_IMAGE - 1)
    request = CompletionRequest(model="base", prompt=tuple(ids), hidden=tuple(hidden), max_tokens=1)
    assert sent["hidden"] == hidden
    (tensor,) = pipeline.images(sent)
    assert [(tensor.data.tobytes(), tuple(tensor.shape))] == list(tensors_of(request, SIDE))
    assert script["text_of_images"](ids) == text_of_images(request.prompt)
