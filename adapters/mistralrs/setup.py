"""What mistral.rs can do, its sizes, and how its process is started."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from coldproof.adapters.common.model_folder import CONFIG, model_folder
from coldproof.adapters.common.started_server import number_of
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.engine_spec import StartOptions

KEPT, LORA = "--prefix-cache-n", "--lora"
USUAL_KEPT, LONGEST, START_SECONDS = 16, 4096, 120.0
# f16 on a CPU otherwise, in which a hit and a miss differ; one thread, so that sums have one order.
ENVIRONMENT = {"MISTRALRS_CPU_KV_F32": "1", "RAYON_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}
NO_IDS = "prompts and answers are texts; each printable character is a token of the generated model"
NO_METRICS = "the Python package has no metrics"
ABSENT = {
    Capability.CACHE_SALT: "a request has no salt",
    Capability.CHAT: "prompts are sent through a template that adds nothing",
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.PROMPT_LOGPROBS: "logprobs are reported for the answer only",
    Capability.SEVERAL_ANSWERS: "the adapter asks for one answer",
    Capability.STOP_STRINGS: "a stop string ends an answer before its text",
    Capability.STRUCTURED_OUTPUT: "the adapter sends no grammars",
    Capability.CACHE_RESET: "no call empties the cache",
    Capability.KV_EVENTS: "mistral.rs publishes no KV events",
    Capability.METRICS: NO_METRICS,
    Capability.HIT_COUNTERS: NO_METRICS,
    Capability.POOL_SIZE: "the cache keeps a number of sequences, however long they are",
    Capability.POOL_USAGE: NO_METRICS,
    Capability.PREEMPTION_COUNTS: "requests are not preempted on a CPU",
    Capability.PROVENANCE: "KV does not identify its writer",
    Capability.SEVERAL_GROUPS: "each layer has a cache of its own, and all of a sequence are kept together",
    Capability.SECOND_TIER: "there is no second tier",
    Capability.ADAPTER_SWITCH: "each request names its adapter",
    Capability.RESET_ENCODER: "the adapter sends no images",
    Capability.RESET_PROCESSOR: "the adapter sends no images",
}
PRESENT = {
    Capability.TOKEN_PROMPTS: NO_IDS,
    Capability.TOKEN_OUTPUTS: NO_IDS,
    Capability.STREAMING: "one chunk for each token",
    Capability.CACHED_TOKENS: "usage.prompt_tokens_details.cached_tokens",
    Capability.LOGPROBS: "logprobs and top_logprobs",
    Capability.ABORT: "a chunk that nobody takes ends its request",
    Capability.BLOCK_SIZE: "a kept sequence is cut to any length",
    Capability.SPAWNABLE: "started by Coldproof",
}
OF_LORA = {
    Capability.ADAPTER_CHOICE: "a request names its adapter",
    Capability.MIXED_ADAPTERS: "requests of several adapters run together",
    Capability.RUNTIME_LORA: "Runner.load_lora_adapter and unload_lora_adapter",
    Capability.LORA_IN_PLACE: "load_lora_adapter with load_inplace",
}


def command(options: StartOptions, port: int) -> list[str]:
    """Return the command of the process. Without its cache, it keeps no sequence."""
    words = [sys.executable, str(Path(__file__).with_name("server.py")), "--model", options.model, "--port", str(port)]
    words += [*options.arguments, *([LORA] if options.adapters else [])]
    return words if options.caching else [*words, KEPT, "0"]


def capabilities(options: StartOptions, version: str | None) -> dict[Capability, Support]:
    """Return every capability with its evidence."""
    lora = bool(options.adapters)
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in {**OPTIONAL_ABSENT, **ABSENT}.items()},
        **{one: Support(lora, how if lora else "no adapter was given") for one, how in OF_LORA.items()},
        Capability.VERSION: Support(version is not None, f"mistralrs {version}"),
    }


def shape(options: StartOptions) -> EngineShape:
    """Return the sizes by the flags. Which hits are owed is not documented, so that none is."""
    config = json.loads((model_folder(options.model) / CONFIG).read_text())
    kept = number_of(KEPT, options.arguments)
    return EngineShape(
        block_size=1,
        pool_blocks=None,
        max_model_tokens=min(LONGEST, config.get("max_position_embeddings", LONGEST)),
        sequences=USUAL_KEPT if kept is None else kept,
        uniform=False,
        kept_every=0,
        adapter_slots=None,  # a further name is refused, and no other one makes room for it
        prefix_caching=options.caching,
        computes_last=True,
    )
