"""How a server takes prompts and returns tokens. What OpenAI documents says nothing about token ids in answers."""

from __future__ import annotations

import enum
from typing import Any

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.server.completions import SEED, TOP_LOGPROBS
from coldproof.adapters.server.plain_answers import text_fields

NO_FIELD = "{} are sent to servers with vLLM's fields only"
NO_STOP = "the text of an answer that a stop string ends leaves out tokens"


class Form(enum.StrEnum):
    """The forms, in the order in which they are tried."""

    FIELDS = "token ids in `prompt` and `token_ids`, as vLLM has them"
    NAMES = "token ids in `prompt` and as the names of tokens with logprobs, as in vLLM before 0.10.2"
    SCORES = "token ids in `prompt` and beside the logprobs (`logprobs.content[].id`), as llama.cpp has them"
    CHARACTERS = "texts, of which each character is a token by the counts in `usage`"


OWN_FIELDS = (Form.FIELDS, Form.NAMES)  # those of the client of vLLM's server


def form_body(form: Form, request: CompletionRequest) -> dict[str, Any]:
    """Return the JSON body of a request in one of the other forms.

    Raises RequestRefused for what these have no known field for, and for a prompt that has no text where one is needed.
    """
    refuse_others(request)
    fields: dict[str, Any] = {"model": request.model}
    if form is Form.CHARACTERS:
        if request.options.stop:
            raise RequestRefused(501, NO_STOP)
        fields |= text_fields(request)
    else:
        fields |= {"prompt": list(request.prompt), "max_tokens": request.max_tokens, "temperature": 0, "seed": SEED}
        fields |= {"logprobs": TOP_LOGPROBS, "stream": True, "stream_options": {"include_usage": True}}
        fields |= {"ignore_eos": not request.options.stop}
    if request.options.stop:
        fields["stop"] = list(request.options.stop)
    if request.cache_salt is not None:
        fields["cache_salt"] = request.cache_salt
    return fields


def refuse_others(request: CompletionRequest) -> None:
    """Raise RequestRefused for a request that uses what only vLLM's fields can say."""
    options = request.options
    used = {
        "chats": request.messages is not None,
        "priorities": bool(request.priority),
        "requests for prompt logprobs": options.prompt_logprobs,
        "requests for several answers": options.answers > 1,
        "patterns": options.pattern is not None,
        "requests for vectors": options.pooled is not None,
        "requests to other endpoints": request.endpoint is not None,
    }
    for what, is_used in used.items():
        if is_used:
            raise RequestRefused(501, NO_FIELD.format(what))
