"""mistral.rs in a process of its own. It keeps whole sequences and continues the longest that a prompt begins with."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, free_port
from coldproof.adapters.common.started_server import StartedServer, is_healthy, package_version, started
from coldproof.adapters.mistralrs.client import BASE_MODEL, MistralrsClient
from coldproof.adapters.mistralrs.setup import (
    ENVIRONMENT,
    START_SECONDS,
    capabilities,
    command,
    shape,
)
from coldproof.adapters.spec.engine_spec import StartOptions


def start(options: StartOptions) -> MistralrsEngine:
    """Start the process and wait until it answers. Raises EngineStartError with the log's tail."""
    port = free_port()
    words, url = command(options, port), f"http://127.0.0.1:{port}"
    process = EngineProcess(words, {**current_environment(), **ENVIRONMENT}, options.log)
    client = MistralrsClient(url, alive=process.running)
    return started(
        "mistral.rs",
        process,
        options.on_process,
        lambda: is_healthy(url) is True,
        START_SECONDS,
        lambda: MistralrsEngine(options, client, process, shlex.join(["mistralrs-server", *words[2:]])),
    )


class MistralrsEngine(StartedServer[MistralrsClient]):
    """One process with an engine."""

    name = "mistralrs"
    base_model = BASE_MODEL

    def __init__(self, options: StartOptions, client: MistralrsClient, process: EngineProcess, command: str) -> None:
        self.client, self.process = client, process
        self.config: Mapping[str, str] = {"command": command, "model": options.model}
        self.version = package_version("mistralrs")
        self.capabilities = capabilities(options, self.version)
        self.shape = shape(options)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Load an adapter under a name, or replace it. Raises RequestRefused with the engine's reason."""
        self.client.load_adapter(name, path, in_place=in_place)

    def unload_adapter(self, name: str) -> None:
        """Take a name away. Raises RequestRefused with the engine's reason."""
        self.client.unload_adapter(name)
