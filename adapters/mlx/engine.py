"""mlx-lm's server. It keeps whole sequences and reuses the longest prefix of one of them, cut to any length.

A model with an adapter is another model for it: it loads one at a time, and keeps the sequences of all.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, free_port
from coldproof.adapters.common.started_server import StartedWithAdapters, is_healthy, package_version, started
from coldproof.adapters.mlx.client import BASE_MODEL, DEFAULT_MODEL, MlxAdapters, MlxClient
from coldproof.adapters.mlx.setup import (
    START_SECONDS,
    UNNAMED,
    adapter_folders,
    capabilities,
    command,
    environment,
    shape,
    write_files,
)
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions


def start(options: StartOptions) -> MlxEngine:
    """Write the adapters, start the server, and wait until it answers. Raises EngineStartError with the log's tail."""
    digests = write_files(options)
    hub = options.folder("hub")
    hub.mkdir(parents=True, exist_ok=True)
    port = free_port()
    words, url = command(options, port), f"http://127.0.0.1:{port}"
    process = EngineProcess(words, environment(current_environment(), hub), options.log)
    folders = [str(folder) for folder in adapter_folders(options)]

    def alive() -> bool:
        return process.running() and is_healthy(url) is not False

    def engine() -> MlxEngine:
        sizes = shape(options)
        adapters = MlxAdapters(digests, folders, DEFAULT_MODEL if UNNAMED in options.arguments else options.model)
        client = MlxClient(url, alive=alive, adapters=adapters, longest=sizes.max_model_tokens)
        printed = shlex.join(["mlx_lm.server", *words[words.index("--model") :]])
        return MlxEngine(options, client, process, sizes, printed)

    return started("mlx-lm", process, options.on_process, lambda: is_healthy(url) is True, START_SECONDS, engine)


class MlxEngine(StartedWithAdapters[MlxClient]):
    """One server of mlx-lm."""

    name = "mlx"
    base_model = BASE_MODEL

    def __init__(
        self, options: StartOptions, client: MlxClient, process: EngineProcess, sizes: EngineShape, command: str
    ) -> None:
        self.client, self.process = client, process
        self.config: Mapping[str, str] = {"command": command, "model": options.model}
        self.version = package_version("mlx-lm")
        self.capabilities = capabilities(options, self.version)
        self.shape = sizes

    def alive(self) -> bool:
        """Return whether the server runs and generates. Where its thread has ended, it refuses every request."""
        return self.client.alive()
