"""Starts SGLang's server on a CPU, for the client and the probes of an attached one."""

from __future__ import annotations

import msgspec

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, free_port
from coldproof.adapters.common.started_server import is_healthy, started
from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineError, EngineStartError
from coldproof.adapters.sglang import setup
from coldproof.adapters.sglang.client import SglangClient
from coldproof.adapters.sglang.probes import probe, read_facts
from coldproof.adapters.sglang.setup import START_SECONDS, command, environment, flags, printed
from coldproof.adapters.sglang.weights import SglangEngine
from coldproof.adapters.spec.engine_spec import StartOptions

STARTED = {Capability.SPAWNABLE: Support(True, "started by Coldproof")}


def start(options: StartOptions) -> SglangEngine:
    """Start the server, wait until it answers, and probe it. Raises EngineStartError with the log's tail."""
    port = free_port()
    words, url = flags(options, port), f"http://127.0.0.1:{port}"
    if setup.corruption is not None and options.caching:
        setup.corruption.list_log(options.log)
    process = EngineProcess(command(words), environment(options, current_environment()), options.log)
    client = SglangClient(url, alive=process.running)
    return started(
        "SGLang",
        process,
        options.on_process,
        lambda: is_healthy(url) is True,
        START_SECONDS,
        lambda: probed(options, client, process, printed(options, words)),
    )


def probed(options: StartOptions, client: SglangClient, process: EngineProcess, words: str) -> SglangEngine:
    """Return the engine behind a client, with what its probes find. Raises EngineStartError."""
    adapter = str(options.adapters[0].resolve()) if options.adapters else None
    try:
        facts = read_facts(client)
        client.base_model = facts.name
        found = probe(client, facts, adapter)
    except EngineError as problem:
        raise EngineStartError(f"{problem}; the end of the server's log:\n{process.tail()}") from problem
    found = msgspec.structs.replace(found, capabilities={**found.capabilities, **STARTED})
    config = {"command": words, "model": options.model}
    return SglangEngine(name="sglang", client=client, probed=found, config=config, process=process)
