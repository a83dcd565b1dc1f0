"""Prompts with images or embedding rows in OpenAI's form, as vLLM's server takes them.

Tokens and content stand in one prompt only as the parts of a chat. A template that adds nothing comes with the request,
and the text of printable tokens is exact where each token is one character.
"""

from __future__ import annotations

import base64
import importlib
import io
import itertools
from collections.abc import Iterator
from typing import Any

import msgspec

from coldproof.adapters.common.image_files import TYPES, image_in_base64
from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import has_rows, is_row
from coldproof.adapters.protocol.endpoints import Endpoint
from coldproof.adapters.protocol.images import (
    arguments_of,
    background_of,
    has_images,
    image_and_offset,
    is_image,
    pixels,
    sent_image,
)
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.server import completions

TRUST_FLAG = "--trust-request-chat-template"  # without it, vLLM's server refuses a template in a request
ARGUMENTS_FLAG = "--trust-request-mm-kwargs"  # without it, vLLM's server refuses arguments of the processor
TEMPLATE = (
    "{% for message in messages %}{% for part in message['content'] %}"
    "{{ part['text'] if part['type'] == 'text' else '<image>' }}"
    "{% endfor %}{% endfor %}"
)
COMPLETIONS, CHAT = Endpoint.COMPLETIONS.value, Endpoint.CHAT.value
Part = dict[str, Any]


def has_content(request: CompletionRequest) -> bool:
    """Return whether a prompt has anything but tokens."""
    return request.messages is None and (has_images(request.prompt) or has_rows(request.prompt))


def path(request: CompletionRequest) -> str:
    """Return the route of a request with content: completions take rows, if there is nothing else."""
    return COMPLETIONS if all(map(is_row, request.prompt)) else CHAT


def body(request: CompletionRequest, shape: EngineShape) -> dict[str, Any]:
    """Return the JSON body of a request with content. `shape`: has the sizes of images and rows."""
    fields = completions.body(msgspec.structs.replace(request, prompt=()))
    del fields["prompt"]
    if path(request) == COMPLETIONS:
        return fields | {"prompt_embeds": tensor(request.prompt, shape)}
    if request.options.logprobs:
        fields |= completions.option_fields(request.options, chat=True)
    message = {"role": "user", "content": list(parts(request, shape))}
    arguments = arguments_of(request.prompt, request.hidden or ()).fields()
    fields |= {"mm_processor_kwargs": arguments} if arguments else {}
    colour = background_of(request.prompt, request.hidden or (), shape.image.side) if shape.image is not None else ()
    fields |= {"media_io_kwargs": {"image": {"rgba_background_color": colour}}} if colour else {}
    return fields | {"messages": [message], "chat_template": TEMPLATE, "add_generation_prompt": False}


def parts(request: CompletionRequest, shape: EngineShape) -> Iterator[Part]:
    """Yield the parts of a prompt: text, rows that follow each other, and images."""
    place = 0
    for kind, numbers in itertools.groupby(request.prompt, kind_of):
        run = list(numbers)
        if kind is is_image:
            yield from image_parts(request, place, len(run), shape)
        elif kind is is_row:
            yield {"type": "prompt_embeds", "data": tensor(run, shape)}
        else:
            yield {"type": "text", "text": "".join(map(chr, run))}
        place += len(run)


def kind_of(number: int) -> Any:
    """Return what an id of a prompt is, as the function that says so; None for a token."""
    return is_image if is_image(number) else is_row if is_row(number) else None


def image_parts(request: CompletionRequest, first: int, count: int, shape: EngineShape) -> Iterator[Part]:
    """Yield the images at `count` positions of a prompt, from `first` on. Raises ValueError without their size."""
    if shape.image is None:
        raise ValueError("the engine takes no images")
    for place in range(first, first + count):
        image, offset = image_and_offset(request.prompt[place])
        if offset:
            continue
        sent = sent_image(request.hidden[place] if request.hidden else 0)
        file = image_in_base64(pixels(image, shape.image.side), shape.image.side, sent.encoding)
        url = f"data:image/{TYPES[sent.encoding]};base64,{file}"
        named = {"uuid": f"image-{sent.uuid}"} if sent.uuid else {}
        yield {"type": "image_url", "image_url": {"url": url}, **named}


def tensor(numbers: list[int] | tuple[int, ...], shape: EngineShape) -> str:
    """Return rows as base64 of a file of torch. Raises ValueError without a width of rows."""
    if shape.row_width is None:
        raise ValueError("the engine takes no rows")
    torch: Any = importlib.import_module("torch")
    file = io.BytesIO()
    torch.save(torch.from_numpy(row_values(numbers, shape.row_width)), file)
    return base64.b64encode(file.getvalue()).decode()


def answer(request: CompletionRequest, completion: Completion) -> Completion:
    """Return an answer whose prompt names what the model sees where the server reports placeholders.

    A prompt of another length stays as it is. A prompt of rows only has no ids.
    """
    reported = completion.prompt
    if path(request) == COMPLETIONS:
        return msgspec.structs.replace(completion, prompt=None)
    if reported is None or len(reported) != len(request.prompt):
        return completion
    seen = (sent if kind_of(sent) else token for sent, token in zip(request.prompt, reported, strict=True))
    return msgspec.structs.replace(completion, prompt=tuple(seen))
