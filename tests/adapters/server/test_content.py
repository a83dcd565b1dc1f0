"""The bodies of requests with images and prompt embeddings, and their answers."""

from __future__ import annotations

import base64
import io
from typing import Any

import msgspec
import numpy as np
import pytest

from coldproof.adapters.common.image_files import image_file
from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import ZERO_ROW, row_id
from coldproof.adapters.protocol.images import (
    Arguments,
    Encoding,
    SentImage,
    image_id,
    image_positions,
    numbers_and_colours,
    pixels,
)
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.protocol.shape import EngineShape, ImageShape
from coldproof.adapters.server import content

SIDE, WIDTH = 6, 4
SHAPE = EngineShape(
    block_size=16,
    pool_blocks=None,
    max_model_tokens=512,
    adapter_slots=None,
    prefix_caching=True,
    image=ImageShape(SIDE, 3),
    row_width=WIDTH,
)
CAT, DOG, ROWS = image_id("cat"), image_id("dog"), (row_id("a"), row_id("b"))
MIXED = (65, *ROWS, 66, 67)


def new_request(*prompt: int, **more: Any) -> CompletionRequest:
    return CompletionRequest(**{"model": "base", "prompt": prompt, "max_tokens": 2, **more})


def parts(request: CompletionRequest) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = content.body(request, SHAPE)["messages"][0]["content"]
    return found


def decoded(data: str) -> Any:
    torch: Any = pytest.importorskip("torch")
    return torch.load(io.BytesIO(base64.b64decode(data)), weights_only=True).numpy()


def test_images_are_parts_between_text() -> None:
    """Images keep their order, also when adjacent. A UUID is sent only for clients that give one."""
    hidden = (0, SentImage(Encoding.BMP, uuid=7).hidden(), *(0,) * 7)
    request = new_request(65, *image_positions(CAT, 3), *image_positions(DOG, 3), 66, 67, hidden=hidden)
    before, cat, dog, behind = parts(request)
    assert (before, behind) == ({"type": "text", "text": "A"}, {"type": "text", "text": "BC"})
    assert (cat["uuid"], "uuid" in dog) == ("image-7", False)
    urls = [one["image_url"]["url"].split(";base64,") for one in (cat, dog)]
    assert [kind for kind, _ in urls] == ["data:image/bmp", "data:image/x-portable-pixmap"]
    files = [base64.b64decode(data) for _, data in urls]
    pairs = ((CAT, Encoding.BMP), (DOG, Encoding.PIXELS))
    assert files == [image_file(pixels(one, SIDE), SIDE, way) for one, way in pairs]


def test_arguments_of_the_processor_are_a_field() -> None:
    """The field holds for the whole request, and is left out if there are no arguments."""
    hidden = (SentImage(arguments=Arguments.RESCALED).hidden(), 0, 0)
    cat = image_positions(image_id("cat", look=Arguments.RESCALED.look), 3)
    reported = content.body(new_request(*cat, hidden=hidden), SHAPE)
    assert reported["mm_processor_kwargs"] == {"do_rescale": True, "rescale_factor": 2.0}
    assert "mm_processor_kwargs" not in content.body(new_request(*image_positions(CAT, 3)), SHAPE)


def test_a_request_names_the_colour_behind_its_holes() -> None:
    """Two images that differ in their first pixel are one file, and the colour that the request names is that pixel."""
    bodies = []
    for variant in (0, 1):
        cat, hidden = image_positions(image_id("cat", variant), 3), (SentImage(Encoding.TRANSPARENT).hidden(), 0, 0)
        body = content.body(new_request(*cat, hidden=hidden), SHAPE)
        colour = body.pop("media_io_kwargs")["image"]["rgba_background_color"]
        assert bytes(colour) == pixels(image_id("cat", variant), SIDE)[:3]
        bodies.append((colour, body))
    (first, one), (second, other) = bodies
    assert first != second
    assert one == other


def test_a_prompt_has_one_colour_behind_its_holes() -> None:
    """Two images whose holes show other colours cannot be sent in one request."""
    prompt = (*image_positions(CAT, 3), *image_positions(image_id("cat", 1), 3))
    hidden = (SentImage(Encoding.TRANSPARENT).hidden(), 0, 0) * 2
    with pytest.raises(ValueError, match="several colours"):
        content.body(new_request(*prompt, hidden=hidden), SHAPE)


def test_a_hole_is_transparent_and_the_rest_is_not() -> None:
    """What the hole shows is not in the file."""
    pil: Any = pytest.importorskip("PIL.Image")
    file = pil.open(io.BytesIO(image_file(pixels(CAT, SIDE), SIDE, Encoding.TRANSPARENT)))
    seen = file.tobytes()
    assert (file.mode, seen[:4], set(seen[7::4])) == ("RGBA", bytes(4), {255})
    assert file.convert("RGB").tobytes()[3:] == pixels(CAT, SIDE)[3:]


@pytest.mark.parametrize("side", [5, 6])
@pytest.mark.parametrize("encoding", [one for one in Encoding if one is not Encoding.TRANSPARENT])
def test_a_file_keeps_every_pixel(encoding: Encoding, side: int) -> None:
    """Every encoding keeps the pixels, also where the rows of a file are padded."""
    pil: Any = pytest.importorskip("PIL.Image")
    file = pil.open(io.BytesIO(image_file(pixels(CAT, side), side, encoding)))
    assert file.mode == ("P" if encoding is Encoding.PALETTE else "RGB")
    assert (file.size, file.convert("RGB").tobytes()) == ((side, side), pixels(CAT, side))


def test_images_with_a_table_of_colours_may_differ_in_the_table_alone() -> None:
    """The numbers say in which order the colours come."""
    (cat, its), (dog, others) = (numbers_and_colours(pixels(image, 8)) for image in (CAT, DOG))
    assert cat == dog
    assert its != others


def test_rows_are_parts_between_text() -> None:
    """Adjacent embeddings form one part."""
    before, rows, behind = parts(new_request(*MIXED))
    assert (before["text"], rows["type"], behind["text"]) == ("A", "prompt_embeds", "BC")
    assert np.array_equal(decoded(rows["data"]), row_values(ROWS, WIDTH))


def test_a_prompt_of_rows_is_a_completion() -> None:
    """A prompt of embeddings alone is sent as a completion without token ids."""
    request = new_request(*ROWS, ZERO_ROW)
    sent = content.body(request, SHAPE)
    assert (content.path(request), "prompt" in sent, "messages" in sent) == ("/v1/completions", False, False)
    assert np.array_equal(decoded(sent["prompt_embeds"]), row_values((*ROWS, ZERO_ROW), WIDTH))
    assert not decoded(sent["prompt_embeds"])[2].any()


def test_the_rest_of_the_body_is_that_of_a_chat() -> None:
    """The body has a template that adds nothing, the salt, and scores in the form of a chat."""
    request = new_request(*MIXED, cache_salt="red", options=ResponseOptions(logprobs=True))
    sent = content.body(request, SHAPE)
    assert content.path(request) == "/v1/chat/completions"
    assert (sent["cache_salt"], sent["logprobs"], sent["top_logprobs"]) == ("red", True, 2)
    assert (sent["add_generation_prompt"], "prompt" in sent) == (False, False)
    jinja2: Any = pytest.importorskip("jinja2")
    said = [{"type": "text", "text": "A "}, {"type": "image"}, {"type": "text", "text": " B"}]
    rendered = jinja2.Template(sent["chat_template"]).render(messages=[{"role": "user", "content": said}])
    assert rendered == "A <image> B"


def test_nothing_is_sent_to_an_engine_without_sizes() -> None:
    """Nothing is sent rather than content of an arbitrary size."""
    without = msgspec.structs.replace(SHAPE, image=None, row_width=None)
    for request in (new_request(*MIXED), new_request(65, *image_positions(CAT, 3))):
        with pytest.raises(ValueError, match="the engine takes no"):
            content.body(request, without)


@pytest.mark.parametrize(
    ("reported", "prompt"),
    [
        ((65, 260, 260, 66, 67), MIXED),
        ((65, 260, 260, 66, 68), (65, *ROWS, 66, 68)),
        ((65, 260, 66, 67), (65, 260, 66, 67)),
        (None, None),
    ],
    ids=["placeholders", "another token", "another length", "not reported"],
)
def test_a_reported_prompt_names_what_the_model_sees(reported: Any, prompt: Any) -> None:
    """Placeholders of the server are replaced by what the model sees. Everything else stays as reported."""
    answer = Completion(tokens=(), finish_reason="length", cached_tokens=0, prompt=reported)
    assert content.answer(new_request(*MIXED), answer).prompt == prompt


def test_only_prompts_with_content_are_changed() -> None:
    """Chats and token ids are sent unchanged."""
    assert not content.has_content(new_request(65, 66))
    assert content.has_content(new_request(65, ROWS[0]))
    assert content.has_content(new_request(65, *image_positions(CAT, 3)))
