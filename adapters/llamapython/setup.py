"""What a start of llama-cpp-python's server needs: its configuration and files. And what follows from them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.gguf import NotTranslated, write_adapter, write_model
from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.common.model_folder import model_folder
from coldproof.adapters.common.named_values import named_values
from coldproof.adapters.llamapython.repairs import program
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions

START_SECONDS = 120.0
BASE_MODEL = "base"
CONFIG_FILE, WEIGHTS, NEW_WEIGHTS = "server.json", "model.gguf", "new-model.gguf"
OF_PYTHON = ("swa_full",)  # arguments of Llama for which the server has no field
KEEPS, KIND, DISK = "--cache", "--cache_type", "disk"
# KV in float32 (GGML's type 0) and one thread: with the defaults, answers sometimes differ even without a cache.
EXACT = {"type_k": 0, "type_v": 0, "n_threads": 1, "n_threads_batch": 1}
SIZES = {"n_ctx": 2048, "n_batch": 512}  # tokens of the context, and of one call of the model
CHANGED: dict[EngineChange, dict[str, Any]] = {
    EngineChange.KV_FORMAT: {"type_k": 1, "type_v": 1},  # half precision
    EngineChange.ROPE: {"rope_freq_base": 1000.0},
}
NO_IDS = "prompts are texts, whose printable characters are tokens of the generated model; ids are read in the engine"
ONE_AT_A_TIME = "a request waits for the end of the one before it"
ABSENT = {
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: "the adapter sends no chats",
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.PROMPT_LOGPROBS: "the adapter asks for scores of the answer only",
    Capability.SEVERAL_ANSWERS: "the server ignores n",
    Capability.STOP_STRINGS: "a stop string ends an answer before its text",
    Capability.STRUCTURED_OUTPUT: "the adapter sends no grammars",
    Capability.CACHE_RESET: "no route empties the cache",
    Capability.KV_EVENTS: "llama-cpp-python publishes no KV events",
    Capability.METRICS: "the server has no metrics",
    Capability.HIT_COUNTERS: "the server has no metrics",
    Capability.POOL_USAGE: "the server has no metrics",
    Capability.PREEMPTION_COUNTS: "requests are not preempted",
    Capability.PROVENANCE: "KV does not identify its writer",
    Capability.SEVERAL_GROUPS: "all layers of a sequence are kept together",
    Capability.RUNTIME_LORA: "the server's models, each with its adapter, are named at the start",
    Capability.LORA_IN_PLACE: "the server's models, each with its adapter, are named at the start",
    Capability.ADAPTER_SWITCH: "each request names its model",
    Capability.MIXED_ADAPTERS: ONE_AT_A_TIME,
    Capability.SECOND_TIER: "kept states have no counters of their own",
    Capability.RESET_ENCODER: "the adapter sends no images",
    Capability.RESET_PROCESSOR: "the adapter sends no images",
}
PRESENT = {
    Capability.TOKEN_PROMPTS: NO_IDS,
    Capability.TOKEN_OUTPUTS: NO_IDS,
    Capability.STREAMING: "one event for each token",
    Capability.CACHED_TOKENS: "the tokens of a prompt for which Llama.eval was not called",
    Capability.LOGPROBS: "logprobs",
    Capability.ABORT: "a closed connection ends its request",
    Capability.BLOCK_SIZE: "a sequence is reused up to any token",
    Capability.POOL_SIZE: "one sequence of n_ctx tokens",
    Capability.SPAWNABLE: "started by Coldproof",
}


def files_folder(options: StartOptions) -> Path:
    """Return the folder for the files of this engine: that of persistent KV, in which a next engine finds the model at
    the same path.
    """
    return options.storage or options.folder("llamapython")


def fields(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the fields of a model by `--NAME VALUE`, as the server's command line takes them. Raises ValueError."""
    return named_values(arguments, "field of the server", parsed)


def parsed(value: str) -> Any:
    """Return a value in JSON, or else the text itself."""
    try:
        return json.loads(value)
    except ValueError:
        return value


def write_files(options: StartOptions) -> list[str]:
    """Write the model and its adapters, and return the adapters' digests. Raises EngineStartError."""
    folder = files_folder(options)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_model(Path(options.model), folder / NEW_WEIGHTS, readable=True)
        take(folder / NEW_WEIGHTS, folder / WEIGHTS)
        digests = [content_digest(source) for source in options.adapters]
        for source, digest in zip(options.adapters, digests, strict=True):
            write_adapter(source, folder / f"{digest}.gguf", model=model_folder(options.model))
    except (NotTranslated, ImportError, OSError, KeyError, ValueError) as problem:
        raise EngineStartError(f"cannot write the model for llama-cpp-python: {problem}") from problem
    return digests


def take(new: Path, file: Path) -> None:
    """Put a file in the place of another one, unless both are equal: a model that did not change keeps its time."""
    if file.is_file() and file.read_bytes() == new.read_bytes():
        new.unlink()
    else:
        new.replace(file)


def models(folder: Path, adapters: Mapping[str, str], given: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the server's models: the base model, and one for each adapter. `adapters`: files by alias."""
    own = {name: value for name, value in given.items() if name not in OF_PYTHON}
    base = {"model": str(folder / WEIGHTS), "model_alias": BASE_MODEL, "verbose": False, **EXACT, **SIZES, **own}
    return [
        base,
        *({**base, "model_alias": alias, "lora_path": str(folder / file)} for alias, file in adapters.items()),
    ]


def of_python(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments with which Python callers load a model, and the server never does."""
    return {name: value for name, value in given.items() if name in OF_PYTHON}


def write_config(options: StartOptions, digests: Sequence[str], port: int) -> Path:
    """Write the server's configuration, and return its file. Raises EngineStartError for a wrong argument."""
    folder = files_folder(options)
    try:
        given = fields(options.arguments) | CHANGED.get(options.changed, {})
    except ValueError as problem:
        raise EngineStartError(str(problem)) from problem
    if not options.caching:
        given["cache"] = False
    served = models(folder, {digest: f"{digest}.gguf" for digest in digests}, given)
    # Otherwise a request ends the answer to the one before it.
    config = {"host": "127.0.0.1", "port": port, "interrupt_requests": False, "models": served}
    target = folder / CONFIG_FILE
    target.write_text(json.dumps({**config, "api": of_python(given)}, indent=1))
    return target


def command(options: StartOptions, config: Path) -> list[str]:
    """Return the command of the server."""
    words = [*program(current_environment()), "--config_file", str(config)]
    return words if options.caching else [*words, "--cold"]


def capabilities(options: StartOptions, version: str | None) -> dict[Capability, Support]:
    """Return every capability with its evidence."""
    count, given = len(options.adapters), fields(options.arguments)
    kept = bool(given.get("cache")) and given.get("cache_type") == DISK
    named = f"{count} models of the server with an adapter each" if count else "no adapter was given"
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in {**OPTIONAL_ABSENT, **ABSENT}.items()},
        Capability.ADAPTER_CHOICE: Support(bool(count), named),
        Capability.PERSISTENT_KV: Support(kept, "LlamaDiskCache" if kept else f"no {KIND} {DISK}"),
        Capability.VERSION: Support(version is not None, f"llama-cpp-python {version}"),
    }


def shape(options: StartOptions) -> EngineShape:
    """Return the sizes by the flags. One sequence is always kept; how many states fit into a cache is not told."""
    longest = int(fields(options.arguments).get("n_ctx", SIZES["n_ctx"]))
    return EngineShape(
        block_size=1,
        pool_blocks=longest,
        max_model_tokens=longest,
        sequences=1,
        adapter_slots=len(options.adapters) or None,
        prefix_caching=options.caching,
        most_requests=1,
        computes_last="draft_model" in fields(options.arguments),  # drafts are computed before they are accepted
        keeps_scores=True,  # Llama.generate: "Exact cache hits can sample immediately"
    )
