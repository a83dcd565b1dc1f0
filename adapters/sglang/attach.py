"""Attach to a running SGLang server through its own routes. Its capabilities are probed.

SGLang gives an adapter a new id with each load and keys its KV by that id. It refuses to load a name that is already
loaded, and it flushes its cache only while no request runs.
"""

from __future__ import annotations

from collections.abc import Callable

from coldproof.adapters.protocol.engine import EngineError, EngineStartError
from coldproof.adapters.server.attach import attachment_config, connect
from coldproof.adapters.server.engine import ServerEngine
from coldproof.adapters.sglang.client import SglangClient
from coldproof.adapters.sglang.probes import probe, read_facts


def attach(url: str, *, adapter_for: Callable[[str | None], str | None]) -> ServerEngine:
    """Return the SGLang server at `url` after probing it. Raises EngineStartError if no SGLang server answers there.

    `adapter_for(root)` returns the path of an adapter that fits the model in the folder `root`, or None.
    """
    client = connect(url, SglangClient)
    try:
        facts = read_facts(client)
        client.base_model = facts.name
        probed = probe(client, facts, adapter_for(facts.root))
    except EngineError as problem:
        raise EngineStartError(str(problem)) from problem
    return ServerEngine(name="sglang", client=client, probed=probed, config=attachment_config(client))
