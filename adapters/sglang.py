"""SGLang, attached: a server that the user started, over its own routes; what it can do is tried, not assumed.

It keys the KV of an adapter by an id that is new with each load, refuses to load a name that is loaded, and flushes its
cache only while nothing runs.
"""

from __future__ import annotations

import os
from collections.abc import Callable

import requests

from adapters.base import EngineError, EngineStartError
from adapters.endpoint import is_server_url, reach
from adapters.redact import KEY_VARIABLE, redacted
from adapters.server import ServerEngine
from adapters.sglang_probes import probe, read_facts
from adapters.sglang_wire import SglangWire


def attach(url: str, *, adapter_for: Callable[[str | None], str | None]) -> ServerEngine:
    """Probe the server at `url`. Raises EngineStartError when nothing answers there, or something else than SGLang.

    `adapter_for(root)` gives the path of an adapter that fits the model whose folder the server names, if one is at
    hand.
    """
    if not is_server_url(url):
        raise EngineStartError(f"{redacted(url)!r} is no URL of a server: write it as http://HOST:PORT")
    wire = SglangWire(url, alive=lambda: True)
    try:
        reach(wire)
    except requests.RequestException as problem:
        raise EngineStartError(
            f"no server answers at {wire.printable_url} ({type(problem).__name__}): is it up, and is the address right?"
        ) from problem
    try:
        facts = read_facts(wire)
        wire.base_model = facts.name
        probed = probe(wire, facts, adapter_for(facts.root))
    except EngineError as problem:
        raise EngineStartError(str(problem)) from problem
    config = {"url": wire.printable_url, "api key": "given" if os.environ.get(KEY_VARIABLE) else "none"}
    return ServerEngine(name="sglang", wire=wire, probed=probed, config=config)
