"""Attach to a running OpenAI-compatible server. Its capabilities are probed over HTTP."""

from __future__ import annotations

from collections.abc import Callable

from coldproof.adapters.protocol.engine import EngineError, EngineStartError
from coldproof.adapters.server.attach import attachment_config, connect
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.server.probes import probe
from coldproof.adapters.server.served_model import served_model


def attach(url: str, *, adapter_for: Callable[[str | None], str | None]) -> ServerEngine:
    """Return the server at `url` after probing it. Raises EngineStartError if no server answers there.

    `adapter_for(root)` returns the path of an adapter that fits the model in the folder `root`, or None.
    """
    client = connect(url, HttpClient)
    try:
        probed = probe(client, spawned=False, adapter_path=adapter_for(served_model(client).root))
    except EngineError as problem:
        raise EngineStartError(str(problem)) from problem
    return ServerEngine(name="endpoint", client=client, probed=probed, config=attachment_config(client))
