"""Prompts with images in OpenVINO GenAI's form: a text with a tag for each image, and the pixels of the images.

The text becomes known token ids, because each printable token of the generated model is one character.
"""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.openvino.seeing_ir import IMAGE_TAG
from coldproof.adapters.protocol.images import Encoding, image_and_offset, images_of, is_image, pixels, sent_image
from coldproof.adapters.protocol.requests import CompletionRequest

Pixels = tuple[bytes, tuple[int, ...]]  # row by row, and the shape of the tensor


def text_of(prompt: tuple[int, ...]) -> str:
    """Return a prompt as a text."""
    places = (image_and_offset(one) if is_image(one) else (one, None) for one in prompt)
    return "".join(chr(what) if offset is None else IMAGE_TAG if not offset else "" for what, offset in places)


def tensors_of(request: CompletionRequest, side: int) -> Iterator[Pixels]:
    """Yield the images of a request. The engine takes no files: a PNG's place has a tensor of another rank."""
    for place, image in images_of(request.prompt):
        sent = sent_image(request.hidden[place] if request.hidden else 0)
        square = (side, side, 3)
        yield pixels(image, side), square if sent.encoding is Encoding.PNG else (1, *square)
