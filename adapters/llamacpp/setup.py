"""What a start of llama.cpp's server needs: flags and files. And the capabilities and sizes that follow from them."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec
import requests

from coldproof.adapters.common.gguf import NotTranslated, write_adapter, write_model
from coldproof.adapters.common.lora_digest import content_digest
from coldproof.adapters.common.model_folder import CONFIG, GGUF, model_folder
from coldproof.adapters.common.started_server import number_of
from coldproof.adapters.llamacpp.projector import PATCHES_OF_IMAGE, SIDE, write_projector
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.protocol.shape import EngineShape, ImageShape
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.spec.engine_spec import StartOptions

SERVER = Path(__file__).with_name("llama_server.py")
START_SECONDS = 60.0
WRITTEN, WRITTEN_Q4 = "model.gguf", "model-q4.gguf"  # the generated model, as Coldproof writes it
FLOAT32, QUANTISED = "model-f32.gguf", "model-quantised.gguf"  # files of a trained model
FOUR_BITS = "--weights-in-4-bits"  # which model file to serve; no flag of the server
SLOTS, CONTEXT, UNIFIED = "--parallel", "--ctx-size", "--kv-unified"
SAVED, REUSE, SHIFT = "--slot-save-path", "--cache-reuse", "--context-shift"
WHOLE_WINDOW = "--swa-full"  # the buffer of a window holds the whole context, so that any prefix can be reused
TOWER = "--mmproj"  # the name of the file with the vision tower, which is written beside the generated model
SIZES = {CONTEXT: "8192", SLOTS: "4"}  # the context, in tokens, is divided among the slots
# llama.cpp's default is KV in half precision. With it, answers sometimes differ even without a cache.
EXACT = (
    *("--cache-type-k", "f32", "--cache-type-v", "f32", "--flash-attn", "off"),
    *("--threads", "1", "--threads-batch", "1"),
)
CHANGED_FLAGS = {
    EngineChange.KV_FORMAT: ("--cache-type-k", "f16", "--cache-type-v", "f16"),
    EngineChange.ROPE: ("--rope-freq-base", "1000"),
}
ALWAYS = ("--no-warmup", "--metrics", "--slots", "--lora-init-without-apply")  # each request chooses its adapter
ADAPTERS_AT_START = "adapters were registered at the start; requests to a name choose one in their lora field"
NO_TEXT = "the tokens of the generated model have placeholder texts"
NO_TOWER = f"no {TOWER}, or a model that Coldproof did not generate: images need a vision tower, and text known ids"
ABSENT = {
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: NO_TEXT,
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.PROMPT_LOGPROBS: "logprobs are reported for the answer only",
    Capability.SEVERAL_ANSWERS: "/completion gives one answer",
    Capability.STOP_STRINGS: NO_TEXT,
    Capability.STRUCTURED_OUTPUT: NO_TEXT,
    Capability.CACHE_RESET: "no route empties every slot and the host's prompt cache",
    Capability.KV_EVENTS: "llama.cpp publishes no KV events",
    Capability.PREEMPTION_COUNTS: "requests are not preempted",
    Capability.POOL_USAGE: "each slot keeps its sequence until another request needs the slot",
    Capability.PROVENANCE: "KV does not identify its writer",
    Capability.SEVERAL_GROUPS: "all layers are of one kind",
    Capability.RUNTIME_LORA: "adapters are read at the start (--lora)",
    Capability.LORA_IN_PLACE: "adapters are read at the start (--lora)",
    Capability.SECOND_TIER: "the host's prompt cache has no counters of its own",
    Capability.IMAGE_UUIDS: "an image has no name but the SHA-256 of its file (mtmd_helper_bitmap_init_from_buf)",
    Capability.IMAGE_PARTS: "an image is reused whole or not at all: server_tokens::keep_first refuses to cut one",
    Capability.TOWER_ADAPTERS: "common_set_adapter_lora applies adapters to the decoder's context only",
    Capability.RESET_ENCODER: "no encoder cache: a slot drops what it encoded with its request (server_slot::reset)",
    Capability.RESET_PROCESSOR: "no processor's cache: each request decodes its images",
}
PRESENT = {
    Capability.TOKEN_PROMPTS: "/completion takes token ids",
    Capability.TOKEN_OUTPUTS: "/completion returns token ids (return_tokens)",
    Capability.STREAMING: "one event for each token",
    Capability.CACHED_TOKENS: "timings.cache_n",
    Capability.LOGPROBS: "n_probs",
    Capability.ABORT: "a closed connection ends its request",
    Capability.METRICS: "/metrics",
    Capability.HIT_COUNTERS: "/metrics counts cached and computed prompt tokens",
    Capability.BLOCK_SIZE: "a slot reuses its sequence up to any token",
    Capability.POOL_SIZE: "/props reports the slots and their context size",
    Capability.SPAWNABLE: "started by Coldproof",
}


class GenerationSettings(msgspec.Struct, frozen=True):
    """The settings of a slot. `n_ctx`: its context size in tokens."""

    n_ctx: int


class Props(msgspec.Struct, frozen=True):
    """The answer of /props. `media_marker`: the text in place of an image; each server draws its own."""

    total_slots: int
    default_generation_settings: GenerationSettings
    media_marker: str = ""


def files_folder(options: StartOptions) -> Path:
    """Return the folder for the files of this engine."""
    return options.folder("gguf")


def published(options: StartOptions) -> Path | None:
    """Return the GGUF file that the user gave, or the one in the folder of a trained model; None otherwise.

    A trained model has a file with float32 weights and one with those that were published, in about 4 bits.
    """
    if options.model.endswith(GGUF):
        return Path(options.model)
    file = Path(options.model, QUANTISED if FOUR_BITS in options.arguments else FLOAT32)
    return file if file.is_file() else None


def written(options: StartOptions) -> Path:
    """Return the file to which Coldproof writes a model that has none."""
    return files_folder(options) / (WRITTEN_Q4 if FOUR_BITS in options.arguments else WRITTEN)


def projector(options: StartOptions) -> Path | None:
    """Return the file of the vision tower. None without the flag, and for a model whose texts are not known."""
    if TOWER not in options.arguments or published(options) is not None:
        return None
    return files_folder(options) / options.arguments[options.arguments.index(TOWER) + 1]


def has_window(model: str) -> bool:
    """Return whether a model has layers with a sliding window, as far as its config.json is known."""
    config = model_folder(model) / CONFIG
    return config.is_file() and "sliding_window" in json.loads(config.read_text())


def states_folder(options: StartOptions) -> Path | None:
    """Return the folder for saved slots, or None without the flag. A relative path is inside the engine's folder."""
    if SAVED not in options.arguments:
        return None
    return (options.storage or files_folder(options)) / options.arguments[options.arguments.index(SAVED) + 1]


def write_files(options: StartOptions) -> list[str]:
    """Write the model and its adapters, and return the adapters' digests. Raises EngineStartError."""
    folder, tower = files_folder(options), projector(options)
    try:
        for each in filter(None, (folder, states_folder(options))):
            each.mkdir(parents=True, exist_ok=True)
        if published(options) is None:
            four_bits, readable = FOUR_BITS in options.arguments, tower is not None
            write_model(Path(options.model), written(options), four_bits=four_bits, readable=readable)
        if tower is not None:
            config = json.loads((Path(options.model) / CONFIG).read_text())
            write_projector(tower, config["hidden_size"])
        digests = [content_digest(source) for source in options.adapters]
        for source, digest in zip(options.adapters, digests, strict=True):
            write_adapter(source, folder / f"{digest}.gguf", model=model_folder(options.model))
    except (NotTranslated, ImportError, OSError, KeyError, ValueError) as problem:
        raise EngineStartError(f"cannot write the model for llama.cpp: {problem}") from problem
    return digests


def flags(options: StartOptions, digests: Sequence[str], port: int) -> list[str]:
    """Return all flags of the server."""
    folder, states = files_folder(options), states_folder(options)
    arguments = [word for word in options.arguments if word != FOUR_BITS]
    if states is not None:
        arguments[arguments.index(SAVED) + 1] = str(states)
    if TOWER in arguments:
        tower, place = projector(options), arguments.index(TOWER)
        arguments[place : place + 2] = [] if tower is None else [TOWER, str(tower)]
    model = published(options) or written(options)
    different = CHANGED_FLAGS.get(options.changed, ())
    words = ["--model", str(model), "--port", str(port), *ALWAYS, *EXACT, *arguments, *different]
    words += [word for flag, size in SIZES.items() if flag not in options.arguments for word in (flag, size)]
    return words + [word for digest in digests for word in ("--lora", str(folder / f"{digest}.gguf"))]


def command(words: Sequence[str]) -> tuple[list[str], str]:
    """Return the command that starts the server here, and the equivalent `llama-server` command as text."""
    return [sys.executable, "-P", str(SERVER), *words], shlex.join(["llama-server", *words])


def is_ready(client: HttpClient) -> bool:
    """Return whether /health answers."""
    try:
        return client.session().get(f"{client.url}/health", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def capabilities(options: StartOptions, version: str | None) -> dict[Capability, Support]:
    """Return every capability with its evidence."""
    count, states, pieces = len(options.adapters), SAVED in options.arguments, number_of(REUSE, options.arguments)
    loads = Support(bool(count), f"{count} {ADAPTERS_AT_START}" if count else "no adapter was registered at the start")
    shifts, sees = SHIFT in options.arguments, projector(options) is not None
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in {**OPTIONAL_ABSENT, **ABSENT}.items()},
        Capability.ADAPTER_CHOICE: loads,
        Capability.MIXED_ADAPTERS: loads,
        Capability.ADAPTER_SWITCH: msgspec.structs.replace(loads, evidence="POST /lora-adapters"),
        Capability.VERSION: Support(version is not None, f"xllamacpp {version}"),
        Capability.SAVED_STATE: Support(states, "POST /slots/ID?action=save" if states else f"no {SAVED}"),
        Capability.PERSISTENT_KV: Support(states, "saved slots are files" if states else f"no {SAVED}"),
        Capability.MOVED_PIECES: Support(bool(pieces), f"{REUSE} {pieces}" if pieces else f"no {REUSE}"),
        Capability.IMAGES: Support(sees, f"{TOWER}, and each printable token is a character" if sees else NO_TOWER),
        Capability.CONTEXT_SHIFT: Support(shifts, SHIFT if shifts else f"no {SHIFT}"),
    }


def shape(options: StartOptions, facts: Props) -> EngineShape:
    """Return the sizes of /props and the flags. Slots that share one buffer each report the whole buffer as theirs."""
    shared = UNIFIED in options.arguments
    slots, longest = facts.total_slots, facts.default_generation_settings.n_ctx
    return EngineShape(
        block_size=1,
        pool_blocks=(number_of(CONTEXT, options.arguments) or int(SIZES[CONTEXT])) if shared else slots * longest,
        max_model_tokens=longest,
        sequences=slots,
        uniform=not has_window(options.model) or WHOLE_WINDOW in options.arguments,
        adapter_slots=len(options.adapters) or None,
        prefix_caching=options.caching,
        most_requests=slots,
        moves_pieces_of=(number_of(REUSE, options.arguments) or None) if options.caching else None,
        shifts_context=SHIFT in options.arguments,
        image=ImageShape(SIDE, PATCHES_OF_IMAGE) if projector(options) is not None else None,
    )
