"""Decode answers of HTTP servers, and describe a malformed answer in one line."""

from __future__ import annotations

from typing import TypeVar

import msgspec
import requests

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.protocol.engine import MalformedAnswer, printable

SEARCHED = 8192  # characters of a body that are kept, at most
SHOWN = 200  # the number of characters of a body in a message
Decoded = TypeVar("Decoded")
# What decoding a body of any content raises, a deeply nested one included, and reading a field that it lacks.
UNREADABLE = (msgspec.MsgspecError, ValueError, TypeError, AttributeError, LookupError, RecursionError)


def decoded(response: requests.Response, kind: type[Decoded], expected: str) -> Decoded:
    """Decode a JSON body. Raises MalformedAnswer if it has another form. `expected`: describes the right form."""
    try:
        return msgspec.json.decode(response.content, type=kind)
    except UNREADABLE as problem:
        raise malformed(response, response.text, expected) from problem


def safe_start(body: str) -> str:
    """Return the start of a body, without secrets. The rest is not worth the time."""
    return redacted(body[:SEARCHED])[: SEARCHED // 2]  # at its end there may be a part of a secret


def malformed(response: requests.Response, body: str, expected: str) -> MalformedAnswer:
    """Return an error with the request, the answer and the expected form. `body`: the malformed part of the answer."""
    sent = f"{response.request.method} {response.request.path_url}"
    received = f"'{printable(safe_start(body), SHOWN)}'" if body.strip() else "an empty body"
    return MalformedAnswer(f"{sent} was answered with HTTP {response.status_code} and {received}; expected {expected}")
