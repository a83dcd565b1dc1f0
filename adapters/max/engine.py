"""MAX's server on a CPU. It keeps pages of 128 tokens by the hash of all tokens before them."""

from __future__ import annotations

from collections.abc import Mapping

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, free_port
from coldproof.adapters.common.started_server import StartedServer, is_healthy, package_version, started
from coldproof.adapters.max.client import MaxClient
from coldproof.adapters.max.setup import (
    BASE_MODEL,
    START_SECONDS,
    capabilities,
    command,
    environment,
    flags,
    pool_blocks,
    printed,
    shape,
)
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.spec.engine_spec import StartOptions


def start(options: StartOptions) -> MaxEngine:
    """Start the server and wait until it has compiled its model. Raises EngineStartError with the log's tail."""
    port = free_port()
    words, url = flags(options, port), f"http://127.0.0.1:{port}"
    variables = environment(options, current_environment())
    process = EngineProcess(command(words), variables, options.log)
    client = MaxClient(url, alive=process.running)
    return started(
        "MAX",
        process,
        options.on_process,
        lambda: is_healthy(url) is True,
        START_SECONDS,
        lambda: MaxEngine(options, client, process, printed(options, words)),
    )


class MaxEngine(StartedServer[MaxClient]):
    """One server of MAX."""

    name = "max"
    base_model = BASE_MODEL

    def __init__(self, options: StartOptions, client: MaxClient, process: EngineProcess, command: str) -> None:
        self.client, self.process = client, process
        self.config: Mapping[str, str] = {"command": command, "model": options.model}
        self.version = package_version("max")
        pool = pool_blocks(options.log.read_text(errors="replace"))
        self.capabilities = capabilities(self.version, pool)
        self.shape = shape(options, pool)

    def load_adapter(self, name: str, path: str, *, in_place: bool) -> None:
        """Raise RequestRefused: MAX has no adapters beside its prefix cache."""
        raise RequestRefused(501, f"{name}, {path}, {in_place}: the server has no adapters beside its prefix cache")

    def unload_adapter(self, name: str) -> None:
        """Raise RequestRefused: MAX has no adapters beside its prefix cache."""
        raise RequestRefused(501, f"{name}: the server has no adapters beside its prefix cache")

    def reset_cache(self) -> bool:
        """Send POST /reset_prefix_cache. Return whether the server confirms the reset."""
        return self.client.reset()[0]
