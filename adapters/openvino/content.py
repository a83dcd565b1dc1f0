"""The images of a request in OpenVINO GenAI's form: tensors of their pixels.

`vision_ir.text_of_images` returns its text.
"""

from __future__ import annotations

from collections.abc import Iterator

from coldproof.adapters.protocol.images import Encoding, images_of, pixels, sent_image
from coldproof.adapters.protocol.requests import CompletionRequest

Pixels = tuple[bytes, tuple[int, ...]]  # row by row, and the shape of the tensor


def tensors_of(request: CompletionRequest, side: int) -> Iterator[Pixels]:
    """Yield the images of a request. The engine takes no files: a PNG's place has a tensor of another rank."""
    for place, image in images_of(request.prompt):
        sent = sent_image(request.hidden[place] if request.hidden else 0)
        square = (side, side, 3)
        yield pixels(image, side), square if sent.encoding is Encoding.PNG else (1, *square)
