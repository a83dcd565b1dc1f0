"""llama.cpp's server through its own HTTP routes.

llama.cpp keeps one sequence for each slot and reuses the prefix that the next prompt shares with it. Adapters are
registered at the start (`--lora`), and a request chooses one in its `lora` field. To load a name therefore means to
bind it to a registered adapter.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.process import EngineProcess, free_port
from coldproof.adapters.common.started_server import StartedWithAdapters, package_version, started
from coldproof.adapters.llamacpp.client import BASE_MODEL, LlamaCppAdapters, LlamaCppClient
from coldproof.adapters.llamacpp.content import ImageForm
from coldproof.adapters.llamacpp.setup import (
    START_SECONDS,
    Props,
    capabilities,
    command,
    flags,
    is_ready,
    shape,
    states_folder,
    write_files,
)
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.server.answers import decoded
from coldproof.adapters.spec.engine_spec import StartOptions

KEPT_STATES = 8  # the number of saved states; more would fill the disk, because each file has the slot's whole KV


class SlotResult(msgspec.Struct, frozen=True):
    """The server's answer after it saved or restored a slot, in tokens."""

    n_saved: int = 0
    n_restored: int = 0


def start(options: StartOptions) -> LlamaCppEngine:
    """Write the files, start the server with all adapters registered, and wait until it answers.

    Raises EngineStartError with the log's tail.
    """
    digests = write_files(options)
    port = free_port()
    arguments, printed = command(flags(options, digests, port))
    environment = {"OMP_NUM_THREADS": "1", **current_environment()}  # a tiny model cannot use more than one thread
    process = EngineProcess(arguments, environment, options.log)
    client = LlamaCppClient(
        f"http://127.0.0.1:{port}",
        alive=process.running,
        adapters=LlamaCppAdapters(digests),
        caching=options.caching,
    )
    return started(
        "llama.cpp (package xllamacpp)",
        process,
        options.on_process,
        lambda: is_ready(client),
        START_SECONDS,
        lambda: LlamaCppEngine(options, client, process, printed),
    )


class LlamaCppEngine(StartedWithAdapters[LlamaCppClient]):
    """One llama.cpp server."""

    name = "llamacpp"
    base_model = BASE_MODEL

    def __init__(self, options: StartOptions, client: LlamaCppClient, process: EngineProcess, command: str) -> None:
        self.options, self.client, self.process = options, client, process
        self.config: Mapping[str, str] = {"command": command, "model": options.model}
        self.version = package_version("xllamacpp")  # the library does not report its llama.cpp
        self.capabilities = capabilities(options, self.version)
        facts = decoded(client.get("/props"), Props, "slots and their context")
        self.shape = shape(options, facts)
        if self.shape.image is not None:
            client.images = ImageForm(facts.media_marker, self.shape.image.side)
        self.saved: list[str] = []  # names of saved states, the latest last

    def switch_adapter(self, name: str, path: str) -> None:
        """Send POST /lora-adapters. Requests without the field `lora` use this adapter from now on."""
        adapters = self.client.adapters
        self.client.post("/lora-adapters", adapters.scales(adapters.number_of(path)))
        adapters.switched_on = name

    def unload_adapter(self, name: str) -> None:
        """Unbind a name, or switch off the adapter that is switched on under this name."""
        adapters = self.client.adapters
        if name != adapters.switched_on:
            adapters.unbind(name)
            return
        self.client.post("/lora-adapters", adapters.scales(None))
        adapters.switched_on = None

    def save_state(self, name: str) -> int:
        """Save every slot to a file (POST /slots/ID?action=save). Only the latest KEPT_STATES names are kept."""
        self.saved = [*(one for one in self.saved if one != name), name]
        for old in self.saved[:-KEPT_STATES]:
            self.delete_state(old)
        return sum(self.slot(number, "save", name).n_saved for number in range(self.slots))

    def restore_state(self, name: str) -> int:
        """Restore every slot (POST /slots/ID?action=restore). A slot that was empty becomes empty again."""
        return sum(self.slot(number, "restore", name).n_restored for number in range(self.slots))

    @property
    def slots(self) -> int:
        """Return the number of slots."""
        return self.shape.sequences or 1

    def slot(self, number: int, action: str, name: str) -> SlotResult:
        """Save or restore one slot and return the server's answer. Raises RequestRefused if the server refuses."""
        answer = self.client.post(f"/slots/{number}?action={action}", {"filename": f"{name}-{number}.bin"})
        return decoded(answer, SlotResult, "how many tokens of a slot were saved or restored")

    def delete_state(self, name: str) -> None:
        """Delete the files of a saved state."""
        self.saved.remove(name)
        folder = states_folder(self.options)
        if folder is not None:
            for number in range(self.slots):
                (folder / f"{name}-{number}.bin").unlink(missing_ok=True)

    def metrics(self) -> Metrics:
        """Send GET /metrics and return the counters and gauges."""
        return self.client.metrics()

    def stop(self) -> None:
        """Stop the server and delete all saved slots, unless another engine follows over their folder."""
        self.process.stop()
        for name in list(self.saved) if self.options.storage is None else ():
            self.delete_state(name)
