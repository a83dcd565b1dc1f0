"""Starts llama.cpp's server, and says what it can do as it was started: flags, files, capabilities, sizes."""

from __future__ import annotations

import importlib.metadata
import json
import os
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import requests

from adapters.base import Capability, EngineShape, EngineStartError, Support
from adapters.gguf_files import NotTranslated, write_adapter, write_model
from adapters.lora_files import content_digest
from adapters.openai_http import Wire
from adapters.process import EngineProcess
from adapters.rare import NOT_OFFERED

SERVER = Path(__file__).with_name("llamacpp_server.py")
START_SECONDS = 60.0
SLOTS, CONTEXT, UNIFIED = "--parallel", "--ctx-size", "--kv-unified"
SAVED, REUSE, SHIFT = "--slot-save-path", "--cache-reuse", "--context-shift"
SIZES = {CONTEXT: "8192", SLOTS: "4"}  # tokens of all slots together; each has its share
# llama.cpp's default, KV in half precision, gives other tokens now and then without any cache.
EXACT = (
    "--cache-type-k",
    "f32",
    "--cache-type-v",
    "f32",
    "--flash-attn",
    "off",
    "--threads",
    "1",
    "--threads-batch",
    "1",
)
ALWAYS = ("--no-warmup", "--metrics", "--slots", "--lora-init-without-apply")  # each request says what it wants
BOUND = "registered at the start; a name is bound to one of them, which its requests then choose by their lora field"
ABSENT = {
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: "the model made on the spot has no text of its own",
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.PROMPT_LOGPROBS: "scores are told of the answer only",
    Capability.SEVERAL_ANSWERS: "/completion gives one answer",
    Capability.STOP_STRINGS: "the model made on the spot has no text of its own",
    Capability.STRUCTURED_OUTPUT: "the model made on the spot has no text of its own",
    Capability.CACHE_RESET: "no route empties every slot and the host's prompt cache",
    Capability.KV_EVENTS: "nothing is published about the cache",
    Capability.PREEMPTION_COUNTS: "requests are not preempted",
    Capability.POOL_USAGE: "each slot keeps its sequence until another one needs it",
    Capability.PROVENANCE: "keys and values do not say whose they are",
    Capability.SEVERAL_GROUPS: "all layers are of one kind",
    Capability.RUNTIME_LORA: "adapters are read at the start (--lora)",
    Capability.LORA_IN_PLACE: "adapters are read at the start (--lora)",
    Capability.SECOND_TIER: "the host's prompt cache tells no counts of its own",
}
PRESENT = {
    Capability.TOKEN_PROMPTS: "/completion takes token ids",
    Capability.TOKEN_OUTPUTS: "/completion returns token ids (return_tokens)",
    Capability.STREAMING: "an event for each token",
    Capability.CACHED_TOKENS: "timings.cache_n",
    Capability.LOGPROBS: "n_probs",
    Capability.ABORT: "a closed connection ends its task",
    Capability.METRICS: "/metrics",
    Capability.HIT_COUNTERS: "/metrics counts cached and computed prompt tokens",
    Capability.BLOCK_SIZE: "a slot goes on from any token of its sequence",
    Capability.POOL_SIZE: "/props tells slots and their tokens",
    Capability.SPAWNABLE: "started by Coldproof",
}


class LlamaCppOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to start: a model folder, adapter folders, flags of `llama-server`, and a log."""

    model: str
    prefix_caching: bool
    adapters: tuple[Path, ...] = ()
    arguments: tuple[str, ...] = ()
    log: Path

    def number(self, flag: str) -> int | None:
        """What the last such flag says, as the server reads it; None where there is none."""
        said = [value for word, value in zip(self.arguments, self.arguments[1:], strict=False) if word == flag]
        return int(said[-1]) if said else None

    @property
    def folder(self) -> Path:
        """For the files of this engine alone."""
        return self.log.with_suffix(".gguf")

    @property
    def states(self) -> Path | None:
        """Where slots are saved; None where they are not. A relative path is one in the engine's own folder."""
        if SAVED not in self.arguments:
            return None
        return self.folder / self.arguments[self.arguments.index(SAVED) + 1]


def write_files(options: LlamaCppOptions) -> list[str]:
    """Write the model and its adapters, and return the adapters' digests. Raises EngineStartError."""
    folder = options.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if options.states is not None:
            options.states.mkdir(parents=True, exist_ok=True)
        write_model(Path(options.model), folder / "model.gguf")
        digests = [content_digest(source) for source in options.adapters]
        for source, digest in zip(options.adapters, digests, strict=True):
            write_adapter(source, folder / f"{digest}.gguf", model=Path(options.model))
    except (NotTranslated, ImportError, OSError, KeyError, ValueError) as problem:
        raise EngineStartError(f"cannot write the model for llama.cpp: {problem}") from problem
    return digests


def flags(options: LlamaCppOptions, digests: Sequence[str], port: int) -> list[str]:
    """All of the server's."""
    folder = options.folder
    given = list(options.arguments)
    if options.states is not None:
        given[given.index(SAVED) + 1] = str(options.states)
    said = ["--model", str(folder / "model.gguf"), "--port", str(port), *ALWAYS, *EXACT, *given]
    said += [word for flag, size in SIZES.items() if flag not in options.arguments for word in (flag, size)]
    return said + [word for digest in digests for word in ("--lora", str(folder / f"{digest}.gguf"))]


def command(said: Sequence[str]) -> tuple[list[str], str]:
    """What starts the server here, and what would on a machine with llama.cpp's own program."""
    return [sys.executable, str(SERVER), *said], shlex.join(["llama-server", *said])


def environment() -> dict[str, str]:
    """The user's, with as few threads as a tiny model can use."""
    return {"OMP_NUM_THREADS": "1", **os.environ}


def wait_ready(wire: Wire, process: EngineProcess) -> None:
    """Poll /health. Raises EngineStartError when the process ends first or time runs out."""
    until = time.monotonic() + START_SECONDS
    while time.monotonic() < until and process.running():
        try:
            if wire.session().get(f"{wire.url}/health", timeout=2).status_code == 200:
                process.remember()
                return
        except requests.RequestException:
            time.sleep(0.05)
    what = "did not become ready" if process.running() else f"ended with exit code {process.exit_code()}"
    raise EngineStartError(f"llama.cpp {what} (package xllamacpp); the end of its log:\n{process.tail()}")


def capabilities(options: LlamaCppOptions, version: str | None) -> dict[Capability, Support]:
    """Each with what says so."""
    count, states, pieces = len(options.adapters), options.states, options.number(REUSE)
    loads = Support(bool(count), f"{count} adapters are {BOUND}" if count else "none was given")
    found = {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in {**ABSENT, **NOT_OFFERED}.items()},
        Capability.ADAPTER_CHOICE: loads,
        Capability.MIXED_ADAPTERS: loads,
        Capability.ADAPTER_SWITCH: msgspec.structs.replace(loads, evidence="POST /lora-adapters"),
        Capability.VERSION: Support(version is not None, f"the package says {version}"),
        Capability.SAVED_STATE: Support(states is not None, "POST /slots/ID?action=save" if states else f"no {SAVED}"),
        Capability.MOVED_PIECES: Support(bool(pieces), f"{REUSE} {pieces}" if pieces else f"no {REUSE}"),
    }
    shifts = SHIFT in options.arguments
    return {**found, Capability.CONTEXT_SHIFT: Support(shifts, SHIFT if shifts else f"no {SHIFT}")}


def shape(options: LlamaCppOptions, facts: Mapping[str, Any]) -> EngineShape:
    """Sizes, as /props and the flags tell them. Each of the slots that share one buffer is said to have all of it."""
    shared = UNIFIED in options.arguments
    slots, longest = int(facts["total_slots"]), int(facts["default_generation_settings"]["n_ctx"])
    return EngineShape(
        block_size=1,
        pool_blocks=(options.number(CONTEXT) or int(SIZES[CONTEXT])) if shared else slots * longest,
        max_model_tokens=longest,
        sequences=slots,
        uniform="sliding_window" not in json.loads(Path(options.model, "config.json").read_text()),
        adapter_slots=len(options.adapters) or None,
        prefix_caching=options.prefix_caching,
        most_requests=slots,
        moves_pieces_of=(options.number(REUSE) or None) if options.prefix_caching else None,
        shifts_context=SHIFT in options.arguments,
    )


def package_version() -> str | None:
    """The package's; the library does not tell which llama.cpp it was made of."""
    try:
        return importlib.metadata.version("xllamacpp")
    except importlib.metadata.PackageNotFoundError:
        return None
