"""Prompts with images: what is sent, the files that the server needs, and a script that sends the same."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support.histories import burst
from support.scripts import case_of, module_of
from support.start_options import start_options

from coldproof.adapters.common.image_files import image_file
from coldproof.adapters.common.tiny_model import make_model
from coldproof.adapters.llamacpp.client import LlamaCppAdapters, LlamaCppClient
from coldproof.adapters.llamacpp.content import ImageForm, prompt_with_images
from coldproof.adapters.llamacpp.projector import PATCHES_OF_IMAGE, SIDE, write_projector
from coldproof.adapters.llamacpp.setup import TOWER, Props, capabilities, flags, projector, shape, write_files
from coldproof.adapters.llamacpp.spec import CELLS
from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.images import Encoding, SentImage, image_id, image_positions, pixels
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.shape import ImageShape
from coldproof.harness.workload.steps import Image, Prompt, Request, Segment
from coldproof.harness.workload.tokens import segment_tokens

CELL = next(cell for cell in CELLS if TOWER in cell.arguments)
CAT, DOG = image_id("cat"), image_id("dog")
FORM = ImageForm("<here>", SIDE)
SEEN = (*map(ord, "a b"), *image_positions(CAT, 4), *image_positions(DOG, 4), ord("c"))
HIDDEN = (0,) * 3 + (SentImage(Encoding.BMP).hidden(), 0, 0, 0) + (SentImage(Encoding.PNG).hidden(),) + (0,) * 4
REQUEST = CompletionRequest(model="base", prompt=SEEN, hidden=HIDDEN, max_tokens=2)


def client(*digests: str) -> LlamaCppClient:
    """Return a client for a server that is never contacted."""
    return LlamaCppClient("http://127.0.0.1:1", alive=lambda: True, adapters=LlamaCppAdapters(digests), caching=True)


def test_a_prompt_is_a_text_with_a_marker_for_each_image() -> None:
    """The files of the images are sent in the order of their markers."""
    sent: dict[str, Any] = prompt_with_images(REQUEST, FORM)
    assert sent["prompt_string"] == "a b<here><here>c"
    files = [base64.b64decode(one) for one in sent["multimodal_data"]]
    assert files == [
        image_file(pixels(CAT, SIDE), SIDE, Encoding.BMP),
        image_file(pixels(DOG, SIDE), SIDE, Encoding.PNG),
    ]


def test_a_request_with_images_names_its_adapters() -> None:
    """Requests with images name their adapters; text requests do not, as with most clients."""
    asking = client("a", "b")
    asking.images = FORM
    assert asking.body(REQUEST)["lora"] == [{"id": 0, "scale": 0.0}, {"id": 1, "scale": 0.0}]
    assert "lora" not in asking.body(msgspec.structs.replace(REQUEST, prompt=(97,), hidden=()))
    with pytest.raises(ValueError, match="takes no images"):
        client().body(REQUEST)


def test_the_files_of_a_server_with_images(tmp_path: Path) -> None:
    """The image encoder is as wide as the model, whose printable tokens are characters. A published model gets none."""
    gguf = pytest.importorskip("gguf")
    make_model(tmp_path / "model", layers=1, hidden=32)
    options = start_options(CELL, TOWER, "p.gguf", log=tmp_path / "e.log", model=str(tmp_path / "model"))
    write_files(options)
    tower = projector(options)
    assert tower is not None
    assert flags(options, [], 1)[flags(options, [], 1).index(TOWER) + 1] == str(tower)
    found = {one.name: list(one.shape) for one in gguf.GGUFReader(tower).tensors}
    assert found["mm.2.weight"] == [32, 32]
    model = gguf.GGUFReader(tower.with_name("model.gguf")).fields["tokenizer.ggml.tokens"]
    texts = model.contents()
    assert (texts[65], texts[32], texts[10], len(set(texts))) == ("A", "\u0120", "t10", len(texts))
    published = start_options(CELL, TOWER, "p.gguf", log=tmp_path / "f.log", model="model.gguf")
    assert projector(published) is None
    assert TOWER not in flags(published, [], 1)


@pytest.mark.parametrize(("arguments", "image"), [((TOWER, "p"), ImageShape(SIDE, PATCHES_OF_IMAGE)), ((), None)])
def test_images_need_the_image_encoder(tmp_path: Path, arguments: tuple[str, ...], image: ImageShape | None) -> None:
    """Without the image encoder the engine has no images. Parts of an image never hit."""
    options = start_options(CELL, *arguments, log=tmp_path / "e.log")
    facts = msgspec.convert({"total_slots": 1, "default_generation_settings": {"n_ctx": 64}}, Props)
    assert shape(options, facts).image == image
    found = capabilities(options, "1")
    assert found[Capability.IMAGES].present is (image is not None)
    assert found[Capability.IMAGE_PARTS].present is False


def test_a_script_sends_the_same_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The script uses the same files and prompts as the adapter."""
    image = Segment("image 0", PATCHES_OF_IMAGE, image=Image("cat", pixel=1, encoding=Encoding.BMP))
    case = case_of("llamacpp", burst(Request(prompt=Prompt((Segment("text", 3), image)))))
    monkeypatch.chdir(tmp_path)
    script = module_of(case)
    server = script["LlamaServer"].__new__(script["LlamaServer"])
    story = script["Story"](server)
    story.nonce, server.url = "n", ""
    script["get"] = lambda _url: {"media_marker": FORM.marker}
    sent = story.prepared(
        {
            "prompt": [
                script["Segment"]("text", 3),
                script["Segment"]("image 0", PATCHES_OF_IMAGE, image=own(script, image)),
            ]
        }
    )
    hidden = [0] * 7 + [SentImage(Encoding.BMP).hidden()] + [0] * (PATCHES_OF_IMAGE - 1)
    assert tuple(sent["ids"][7:]) == segment_tokens("n", image)
    assert sent["hidden"] == hidden
    request = CompletionRequest(model="base", prompt=tuple(sent["ids"]), hidden=tuple(hidden), max_tokens=1)
    assert server.with_files(sent) == prompt_with_images(request, FORM)
    write_projector(tmp_path / "ours.gguf", 32)
    script["write_projector"](tmp_path / "theirs.gguf", 32)
    assert (tmp_path / "ours.gguf").read_bytes() == (tmp_path / "theirs.gguf").read_bytes()


def own(script: dict[str, Any], segment: Segment) -> Any:
    """Return the image of a segment as the script has it."""
    assert segment.image
    return script["Image"]("cat", pixel=segment.image.pixel, encoding=script["Encoding"](segment.image.encoding))
