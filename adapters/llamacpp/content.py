"""Prompts with images in llama.cpp's form: one text with a marker for each image, and the files of the images.

The text becomes known token ids, because each printable token of the generated model is one character.
"""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.adapters.common.image_files import image_in_base64
from coldproof.adapters.protocol.images import image_and_offset, images_of, is_image, pixels, sent_image
from coldproof.adapters.protocol.requests import CompletionRequest


class ImageForm(msgspec.Struct, frozen=True):
    """How a server takes images. `marker`: the text in place of an image. `side`: of the square images, in pixels."""

    marker: str
    side: int


def prompt_with_images(request: CompletionRequest, form: ImageForm) -> dict[str, object]:
    """Return the field `prompt` of a request with images."""
    places = (image_and_offset(one) if is_image(one) else (one, None) for one in request.prompt)
    words = (chr(what) if offset is None else form.marker if not offset else "" for what, offset in places)
    return {"prompt_string": "".join(words), "multimodal_data": list(files(request, form.side))}


def files(request: CompletionRequest, side: int) -> Iterator[str]:
    """Yield the files of a request's images as base64."""
    for place, image in images_of(request.prompt):
        sent = sent_image(request.hidden[place] if request.hidden else 0)
        yield image_in_base64(pixels(image, side), side, sent.encoding)
