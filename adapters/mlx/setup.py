"""What a start of mlx-lm's server needs: flags and files. And the capabilities and sizes that follow from them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.common.model_folder import CONFIG, model_folder
from coldproof.adapters.common.started_server import number_of
from coldproof.adapters.mlx.files import write_adapter
from coldproof.adapters.mlx.repairs import program
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions

START_SECONDS = 120.0
KEPT = "--prompt-cache-size"  # sequences that the cache keeps
DRAFTS = "--draft-model"
CHUNKS = ("--prefill-step-size", "32", "--prompt-concurrency", "1")
ITSELF = "SERVED-MODEL"  # in a cell's flags, in place of the path of a draft model
UNNAMED = "--requests-name-no-model"  # how requests for an adapter are sent; no flag of the server
USUAL_KEPT = 10  # the server's default
LONGEST = 2048  # tokens of a request: the server has no limit of its own
# One thread, and no look at a model hub: the list of models, which clients ask for, fails without the hub's folder.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
NO_IDS = "prompts and answers are texts; each printable character is a token of the generated model"
ABSENT = {
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: "the server does not say how it renders a chat",
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.PROMPT_LOGPROBS: "logprobs are reported for the answer only",
    Capability.SEVERAL_ANSWERS: "a request has one answer",
    Capability.STOP_STRINGS: "a stop string ends an answer before its text",
    Capability.STRUCTURED_OUTPUT: "the server has no grammars",
    Capability.CACHE_RESET: "no route empties the cache",
    Capability.KV_EVENTS: "mlx-lm publishes no KV events",
    Capability.METRICS: "the server has no metrics",
    Capability.HIT_COUNTERS: "the server has no metrics",
    Capability.POOL_SIZE: "the cache keeps a number of sequences, however long they are",
    Capability.POOL_USAGE: "the server has no metrics",
    Capability.PREEMPTION_COUNTS: "requests are not preempted",
    Capability.PROVENANCE: "KV does not identify its writer",
    Capability.SEVERAL_GROUPS: "each layer has a cache of its own, and all of a sequence are kept together",
    Capability.SECOND_TIER: "there is no second tier",
    Capability.RUNTIME_LORA: "adapters are bound to names before the first request",
    Capability.LORA_IN_PLACE: "an adapter that is loaded is not read again",
    Capability.ADAPTER_SWITCH: "each request names its adapter",
    Capability.MIXED_ADAPTERS: "a batch has one adapter: the next request waits for its end",
    Capability.RESET_ENCODER: "the adapter sends no images",
    Capability.RESET_PROCESSOR: "the adapter sends no images",
}
PRESENT = {
    Capability.TOKEN_PROMPTS: NO_IDS,
    Capability.TOKEN_OUTPUTS: NO_IDS,
    Capability.STREAMING: "one event for each token",
    Capability.CACHED_TOKENS: "usage.prompt_tokens_details.cached_tokens",
    Capability.LOGPROBS: "logprobs and top_logprobs, not in a stream",
    Capability.ABORT: "a closed connection ends its request",
    Capability.BLOCK_SIZE: "a kept sequence is cut to any length",
    Capability.SPAWNABLE: "started by Coldproof",
}


def adapter_folders(options: StartOptions) -> list[Path]:
    """Return the folders to which the adapters are written."""
    folder = options.folder("mlx")
    return [folder / content_digest(source) for source in options.adapters]


def write_files(options: StartOptions) -> list[str]:
    """Write the adapters, and return their digests. Raises EngineStartError."""
    try:
        folders = adapter_folders(options)
        layers = json.loads((model_folder(options.model) / CONFIG).read_text())["num_hidden_layers"]
        for source, target in zip(options.adapters, folders, strict=True):
            write_adapter(source, target, layers=layers)
    except (ImportError, OSError, KeyError, ValueError, IndexError) as problem:
        raise EngineStartError(f"cannot write the adapters for mlx-lm: {problem}") from problem
    return [folder.name for folder in folders]


def command(options: StartOptions, port: int) -> list[str]:
    """Return the command of the server. Without its cache, it keeps no sequence."""
    arguments = [options.model if word == ITSELF else word for word in options.arguments if word != UNNAMED]
    words = [sys.executable, "-m", *program(current_environment()), "--model", options.model, "--host", "127.0.0.1"]
    words += ["--port", str(port), *arguments]
    return words if options.caching else [*words, KEPT, "0"]


def capabilities(options: StartOptions, version: str | None) -> dict[Capability, Support]:
    """Return every capability with its evidence."""
    count = len(options.adapters)
    named = f"{count} folders with adapters; a request names one in its field adapters"
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in {**OPTIONAL_ABSENT, **ABSENT}.items()},
        Capability.ADAPTER_CHOICE: Support(bool(count), named if count else "no adapter was given"),
        Capability.VERSION: Support(version is not None, f"mlx-lm {version}"),
    }


def shape(options: StartOptions) -> EngineShape:
    """Return the sizes by the flags. A sequence whose layers keep a window cannot be cut, so that no hit is owed."""
    config = json.loads((model_folder(options.model) / CONFIG).read_text())
    kept = number_of(KEPT, options.arguments)
    return EngineShape(
        block_size=1,
        pool_blocks=None,
        max_model_tokens=min(LONGEST, config.get("max_position_embeddings", LONGEST)),
        sequences=USUAL_KEPT if kept is None else kept,
        uniform="sliding_window" not in config,
        adapter_slots=len(options.adapters) or None,
        prefix_caching=options.caching,
        computes_last=True,  # mlx_lm/generate.py, `GenerationBatch._step`: the next token is computed ahead
    )


def environment(base: dict[str, str], hub: Path) -> dict[str, str]:
    """Return the variables of the server. `hub`: an empty folder in place of that of a model hub."""
    return {**ENVIRONMENT, "HF_HUB_CACHE": str(hub), **base}
