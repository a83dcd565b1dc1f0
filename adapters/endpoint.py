"""Attach to a running OpenAI-compatible server: nothing but HTTP, everything probed."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import requests
import tenacity

from adapters.base import EngineError, EngineStartError
from adapters.openai_http import Wire
from adapters.probes import probe, served_model
from adapters.redact import KEY_VARIABLE, redacted
from adapters.server import ServerEngine

ATTACH_SECONDS = 10
AnyWire = TypeVar("AnyWire", bound=Wire)


def attach(url: str, *, adapter_for: Callable[[str | None], str | None]) -> ServerEngine:
    """Probe the server at `url`. Raises EngineStartError when nothing answers there.

    `adapter_for(root)` gives the path of an adapter that fits the model whose root the server names, if one is at hand.
    """
    wire = reached(url, Wire)
    try:
        probed = probe(wire, spawned=False, adapter_path=adapter_for(served_model(wire).root))
    except EngineError as problem:
        raise EngineStartError(str(problem)) from problem
    return ServerEngine(name="endpoint", wire=wire, probed=probed, config=attachment(wire))


def reached(url: str, kind: type[AnyWire]) -> AnyWire:
    """A wire of this kind to a server that answers. Raises EngineStartError when none does."""
    if not is_server_url(url):
        raise EngineStartError(f"{redacted(url)!r} is no URL of a server: write it as http://HOST:PORT")
    wire = kind(url, alive=lambda: True)
    try:
        reach(wire)
    except requests.RequestException as problem:
        raise EngineStartError(
            f"no server answers at {wire.printable_url} ({type(problem).__name__}): is it up, and is the address right?"
        ) from problem
    return wire


def attachment(wire: Wire) -> dict[str, str]:
    """What a report says of a server that is somebody else's."""
    return {"url": wire.printable_url, "api key": "given" if os.environ.get(KEY_VARIABLE) else "none"}


def is_server_url(url: str) -> bool:
    """Whether a URL names a host and, if any, a possible port."""
    try:
        parts = urlsplit(url)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        return False


@tenacity.retry(
    retry=tenacity.retry_if_exception_type(requests.RequestException),
    stop=tenacity.stop_after_delay(ATTACH_SECONDS),
    wait=tenacity.wait_fixed(1),
    reraise=True,
)
def reach(wire: Wire) -> None:
    """Wait a little for a server that is just coming up."""
    wire.session().get(f"{wire.url}/v1/models", timeout=5)
