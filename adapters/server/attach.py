"""Attach to a running server by its URL."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TypeVar
from urllib.parse import urlsplit

import requests
import tenacity

from coldproof.adapters.common.redact import KEY_VARIABLE, redacted
from coldproof.adapters.protocol.engine import EngineError, EngineStartError
from coldproof.adapters.protocol.request_time import RequestOverdue, RequestTime
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import ProbeResult
from coldproof.adapters.server.transport import BROKEN, cannot_connect

ATTACH_SECONDS = 10
ANSWER_SECONDS = 30  # a server without enough CPU time has taken more than 20 s for an answer

AnyClient = TypeVar("AnyClient", bound=HttpClient)


def attach_server(
    url: str,
    *,
    name: str,
    kind: type[AnyClient],
    probe: Callable[[AnyClient], ProbeResult],
    time: RequestTime,
    engine: type[ServerEngine] = ServerEngine,
) -> ServerEngine:
    """Return the server at `url` as an `engine`, after probing it with a client of class `kind`.

    Raises EngineStartError if no server answers there in time, or if a probe raises EngineError.
    """
    client = connect(url, kind, time)
    try:
        probed = probe(client)
    except (EngineError, RequestOverdue) as problem:
        raise EngineStartError(str(problem)) from problem
    config = {"url": client.printable_url, "api key": "given" if os.environ.get(KEY_VARIABLE) else "none"}
    return engine(name=name, client=client, probed=probed, config=config)


def connect(url: str, kind: type[AnyClient], time: RequestTime) -> AnyClient:
    """Return a client of this class for the server at `url`. Raises EngineStartError if no server answers there."""
    if not is_server_url(url):
        raise EngineStartError(f"invalid server URL {redacted(url)!r}: use http://HOST:PORT")
    client = kind(url, alive=lambda: True, time=time)
    try:
        wait_until_reachable(client)
    except (EngineError, RequestOverdue) as problem:
        raise EngineStartError(str(problem)) from problem
    except BROKEN as problem:
        raise EngineStartError(
            f"{no_answer(client, problem)} ({type(problem).__name__}): check that it runs and that the address is right"
        ) from problem
    return client


def no_answer(client: HttpClient, problem: Exception) -> str:
    """Return what happened instead of an answer."""
    if isinstance(problem, requests.ReadTimeout):
        return f"{client.printable_url} accepts connections and sends nothing"
    if cannot_connect(problem):
        return f"no server answers at {client.printable_url}"
    return f"{client.printable_url} accepts connections, but breaks them or sends no HTTP"


def is_server_url(url: str) -> bool:
    """Return whether a URL is an HTTP URL with a host and, if it has a port, a valid port."""
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
def wait_until_reachable(client: HttpClient) -> None:
    """Wait up to ATTACH_SECONDS for a server that accepts a connection, and ANSWER_SECONDS for its first answer."""
    client.session().get(f"{client.url}/v1/models", timeout=(5, ANSWER_SECONDS))
