"""Loads a model in Transformers and creates the manager of its continuous batching; its capabilities and sizes.

Torch and Transformers are imported only when an engine is started.
"""

from __future__ import annotations

import ast
import contextlib
import gc
import importlib
import importlib.util
import json
import logging
import math
import os
import sys
import threading
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions
from coldproof.adapters.transformers.loop import Loop
from coldproof.adapters.transformers.releases import (
    NO_RESET,
    attention_kinds,
    block_tokens,
    can_reset,
    configuration_of,
)

PACKAGES = ("torch", "transformers")
MODULES = (  # those that a start imports, the generated model's among them
    "transformers.generation.continuous_batching",
    "transformers.models.auto.modeling_auto",
    "transformers.models.auto.tokenization_auto",
    "transformers.models.qwen2.modeling_qwen2",
    "peft",
    "safetensors.torch",
)
# Transformers creates a model on the meta device while it loads, in a context of the whole process. Two engines that
# start at the same time then fail: "Cannot copy out of meta tensor; no data!".
LOADING = threading.Lock()
ANSWERS = "num_return_sequences"  # add_request takes it from the manager
INSTALL = "pip install torch transformers peft accelerate"
LOGGER = "ContinuousBatchingLogger"
# For exact answers: float32, no graphs, one batch at a time, and an attention implementation that every machine has.
MODEL_FIELDS = {"device": "cpu", "dtype": "float32", "attn_implementation": "sdpa"}
FIELDS: dict[str, object] = {
    "page_size": 16,
    "num_blocks": 256,
    "max_batch_tokens": 256,
    "use_cuda_graph": False,
    "use_async_batching": False,
    "auto_switch_to_flash": False,
    "return_logprobs": True,
}
SHARING = "allow_block_sharing"
PRESENT = {
    Capability.TOKEN_PROMPTS: "add_request takes token ids",
    Capability.TOKEN_OUTPUTS: "a GenerationOutput has the token ids",
    Capability.STREAMING: "add_request(streaming=True): an output after each token",
    Capability.CACHED_TOKENS: "not reported; counted per request in PagedAttentionCache.search_prefix_match",
    Capability.ABORT: "cancel_request",
    Capability.CACHE_RESET: "PagedAttentionCache.reset while there are no requests; it empties the hash tables",
    Capability.METRICS: "read from the scheduler and the pool",
    Capability.PREEMPTION_COUNTS: "not reported; counted per request in Scheduler.add_waiting_request",
    Capability.POOL_USAGE: "PagedAttentionCache.compute_free_capacity, without cached blocks that no request uses",
    Capability.SPAWNABLE: "started by Coldproof, in its own process",
    Capability.DIRECT_SCORES: "one forward pass of the model beside the paused loop",
    Capability.WEIGHT_UPDATES: "the model's parameters are shared, and can be changed under pause()",
    Capability.WEIGHTS_IN_PLACE: "copied into the model's parameters under pause()",
    Capability.WEIGHT_CHECKSUM: "computed from the model's parameters",
}
NO_ROUTE = "Transformers loads no weights into a live model: a trainer changes the shared parameters under pause()"
NO_MODES = "pause() only stops the loop for the thread that calls it; it has no modes"
ABSENT = {
    Capability.MIXED_ADAPTERS: "set_adapter affects the whole model: requests of other adapters wait",
    Capability.CACHE_SALT: "a request has no salt, and a block's hash contains only tokens",
    Capability.PRIORITY: "requests are served in the order of arrival",
    Capability.PROMPT_LOGPROBS: "logprobs are reported for the answer only",
    Capability.STOP_STRINGS: "continuous batching ends an answer at token ids only",
    Capability.STRUCTURED_OUTPUT: "continuous batching accepts no grammar",
    Capability.KV_EVENTS: "the engine publishes no events",
    Capability.HIT_COUNTERS: "the engine does not count hits",
    Capability.SECOND_TIER: "the CPU swap space stores preempted requests, but no prefixes",
    Capability.PROVENANCE: "keys and values do not identify their writer",
    **{capability: why for capability, why in OPTIONAL_ABSENT.items() if capability not in PRESENT},
    Capability.IMAGES: (
        "add_request takes input_ids only, and ContinuousBatchingIOs.get_model_kwargs passes no pixels to the model"
    ),
    **dict.fromkeys((Capability.WEIGHTS_FROM_PATH, Capability.WEIGHTS_SAME_PATH), NO_ROUTE),
    **dict.fromkeys((Capability.PAUSE_ABORT, Capability.PAUSE_WAIT, Capability.PAUSE_KEEP, Capability.SLEEP), NO_MODES),
}
NEED_RESET = (Capability.CACHE_RESET, Capability.WEIGHT_UPDATES)  # only a reset invalidates after an update
WITH_PEFT = {
    Capability.ADAPTER_SWITCH: "set_adapter under pause()",
    Capability.RUNTIME_LORA: "load_adapter and delete_adapter under pause()",
    Capability.LORA_IN_PLACE: "delete_adapter and load_adapter of the same name under one pause()",
    Capability.ADAPTER_CHOICE: (
        "load_adapter and set_adapter under pause(), before the first request of another adapter"
    ),
}

_first = threading.Lock()
_frozen = False


class PipelineParts(msgspec.Struct, frozen=True):
    """A loop at its first pause, its model, its tokenizer (None if the folder has none) and its log."""

    loop: Loop
    model: Any
    tokenizer: Any
    log: EngineLog


def fields(options: StartOptions) -> dict[str, object]:
    """Return the fields by name: the defaults, overridden by the arguments.

    `arguments`: `NAME=VALUE` fields of ContinuousBatchingConfig, or device, dtype or attn_implementation of the model.
    """
    words = (argument.partition("=") for argument in options.arguments)
    overrides = {name: parse_value(value) for name, _, value in words}
    return {**MODEL_FIELDS, **FIELDS, SHARING: options.caching, **overrides}


def parse_value(text: str) -> object:
    """Return the value of a field: a Python literal, or the text itself."""
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def check_installed() -> None:
    """Raise EngineStartError if a package is missing."""
    missing = [name for name in PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise EngineStartError(f"{' and '.join(missing)} not installed for {sys.executable}: {INSTALL}")


def build(options: StartOptions) -> PipelineParts:
    """Load the model and run the loop up to its first pause, in the driver's thread. Raises EngineStartError."""
    configure_logging()
    of_engine = fields(options)
    of_model = {name: of_engine.pop(name) for name in MODEL_FIELDS}
    options.log.parent.mkdir(parents=True, exist_ok=True)
    log = EngineLog(options.log)
    try:
        model = load_model(options.model, **of_model)
        generation = importlib.import_module("transformers.generation.configuration_utils")
        manager = model.init_continuous_batching(
            generation.GenerationConfig(do_sample=False, eos_token_id=-1),
            configuration_of(generation.ContinuousBatchingConfig, of_engine),
        )
        parts = PipelineParts(Loop(manager), model, load_tokenizer(options.model), log)
        log.threads.add(manager._generation_thread.ident)
        return parts
    except EngineStartError:
        log.close()
        raise
    except Exception as problem:
        log.close()
        raise EngineStartError(f"Transformers did not start ({json.dumps(fields(options))}): {problem}") from problem


def preload() -> None:
    """Import what a start needs, and start nothing. Not with a CUDA build of torch: CUDA and forks do not mix."""
    if any(importlib.util.find_spec(name) is None for name in ("torch", "transformers", "peft")):
        return
    if importlib.import_module("torch").version.cuda is not None:
        return
    for name in MODULES:
        with contextlib.suppress(ImportError):  # another version has it elsewhere; the start imports it then
            importlib.import_module(name)


def load_model(folder: str, *, device: object, dtype: object, attn_implementation: object) -> Any:
    """Return the loaded model."""
    torch, library = importlib.import_module("torch"), importlib.import_module("transformers")
    if "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(1)  # a tiny model cannot use more
    with LOADING:
        model = library.AutoModelForCausalLM.from_pretrained(
            folder, dtype=getattr(torch, str(dtype)), attn_implementation=attn_implementation, local_files_only=True
        )
        return model.to(device)


def load_tokenizer(folder: str) -> Any:
    """Return the tokenizer in a folder; None if there is none."""
    try:
        return importlib.import_module("transformers").AutoTokenizer.from_pretrained(folder, local_files_only=True)
    except (OSError, ValueError):
        return None


def configure_logging() -> None:
    """Keep Transformers' messages off standard error. The first call also calls `gc.freeze`."""
    global _frozen
    with _first:
        transformers_logging = importlib.import_module("transformers.utils.logging")
        transformers_logging.set_verbosity_error()
        transformers_logging.disable_progress_bar()
        importlib.import_module("transformers.generation.continuous_batching")
        logging.getLogger(LOGGER).setLevel(logging.INFO)
        for handler in [h for h in logging.getLogger(LOGGER).handlers if type(h) is logging.StreamHandler]:
            logging.getLogger(LOGGER).removeHandler(handler)
        if not _frozen:
            gc.freeze()  # stopping a manager collects garbage, which takes half a second with torch's modules included
            _frozen = True


class EngineLog(logging.FileHandler):
    """A file with the log records of an engine's two threads: the driver, which creates it, and the generation loop."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, mode="w", encoding="utf-8")
        self.threads = {threading.get_ident()}
        self.setFormatter(logging.Formatter("%(levelname)s %(asctime)s %(message)s"))
        self.addFilter(lambda record: record.thread in self.threads)
        logging.getLogger(LOGGER).addHandler(self)

    def close(self) -> None:
        """Close the log. Safe to call twice."""
        logging.getLogger(LOGGER).removeHandler(self)
        super().close()


def version() -> str:
    """Return the version of the Transformers package."""
    return str(importlib.import_module("transformers").__version__)


def capabilities(parts: PipelineParts) -> dict[Capability, Support]:
    """Return the support of each capability, with its evidence."""
    config, cache = parts.loop.manager.continuous_batching_config, parts.loop.processor.cache
    kinds, peft = attention_kinds(cache), importlib.util.find_spec("peft") is not None
    chats = parts.tokenizer is not None and parts.tokenizer.chat_template is not None
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in ABSENT.items()},
        **{c: Support(peft, evidence if peft else "peft is not installed") for c, evidence in WITH_PEFT.items()},
        Capability.LOGPROBS: Support(
            config.return_logprobs, f"return_logprobs={config.return_logprobs}: of each token, without alternatives"
        ),
        Capability.CHAT: Support(
            chats, "the tokenizer's chat template" if chats else "the tokenizer has no chat template"
        ),
        Capability.SEVERAL_ANSWERS: Support(
            hasattr(parts.loop.manager, ANSWERS),
            f"{ANSWERS} of the manager, set before each request; greedy, so that all answers are equal",
        ),
        Capability.VERSION: Support(True, f"package version {version()}"),
        Capability.BLOCK_SIZE: Support(True, f"page_size={block_tokens(config)}"),
        Capability.POOL_SIZE: Support(True, f"num_blocks={cache.num_blocks}"),
        Capability.SEVERAL_GROUPS: Support(len(kinds) > 1, f"the kinds of attention: {', '.join(kinds)}"),
        **({} if can_reset(cache) else dict.fromkeys(NEED_RESET, Support(False, NO_RESET))),
    }


def shape(parts: PipelineParts) -> EngineShape:
    """Return the sizes of the created cache."""
    config, cache = parts.loop.manager.continuous_batching_config, parts.loop.processor.cache
    return EngineShape(
        block_size=block_tokens(config),
        pool_blocks=cache.num_blocks,
        max_model_tokens=parts.model.config.get_text_config().max_position_embeddings,
        adapter_slots=1,  # active at the same time
        prefix_caching=cache.use_prefix_sharing,
        drops_all_below=math.ceil(parts.loop.processor.scheduler.safety_margin * cache.num_blocks),
        uniform=attention_kinds(cache) == ["full_attention"],
        in_order=False,  # requests that do not fit are passed over, and a part of the pool is kept free
        most_requests=config.max_requests_per_batch,
    )
