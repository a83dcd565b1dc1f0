"""llama-cpp-python's server. It keeps the sequence of the last request, and with `cache` the states of earlier ones.

It has one model at a time: a request to another one, such as the same model with an adapter, closes it.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, free_port
from coldproof.adapters.common.started_server import StartedWithAdapters, is_healthy, package_version, started
from coldproof.adapters.llamapython.client import LlamaPythonClient, ModelAliases
from coldproof.adapters.llamapython.setup import (
    BASE_MODEL,
    CONFIG_FILE,
    START_SECONDS,
    capabilities,
    command,
    shape,
    write_config,
    write_files,
)
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions


def start(options: StartOptions) -> LlamaPythonEngine:
    """Write the files, start the server, and wait until it answers. Raises EngineStartError with the log's tail."""
    digests, port = write_files(options), free_port()
    url = f"http://127.0.0.1:{port}"
    words = command(options, write_config(options, digests, port))
    process = EngineProcess(words, {"OMP_NUM_THREADS": "1", **current_environment()}, options.log)

    def engine() -> LlamaPythonEngine:
        sizes, aliases = shape(options), ModelAliases(digests)
        client = LlamaPythonClient(url, alive=process.running, adapters=aliases, longest=sizes.max_model_tokens)
        return LlamaPythonEngine(options, client, process, sizes)

    return started(
        "llama-cpp-python",
        process,
        options.on_process,
        lambda: is_healthy(url, "/v1/models") is True,
        START_SECONDS,
        engine,
    )


class LlamaPythonEngine(StartedWithAdapters[LlamaPythonClient]):
    """One server of llama-cpp-python."""

    name = "llamapython"
    base_model = BASE_MODEL

    def __init__(
        self, options: StartOptions, client: LlamaPythonClient, process: EngineProcess, sizes: EngineShape
    ) -> None:
        self.client, self.process = client, process
        words = shlex.join(["python", "-m", "llama_cpp.server", "--config_file", CONFIG_FILE])
        fields = " ".join(options.arguments)
        self.config: Mapping[str, str] = {"command": words, "fields": fields or "none", "model": options.model}
        self.version = package_version("llama-cpp-python")
        self.capabilities = capabilities(options, self.version)
        self.shape = sizes
