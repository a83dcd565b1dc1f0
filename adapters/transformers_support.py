"""What a Transformers engine offers, and its sizes: read from the cache and the configuration that it made."""

from __future__ import annotations

import importlib.util
import math

from adapters.base import Capability, EngineShape, Support
from adapters.rare import NOT_OFFERED
from adapters.transformers_setup import Built

PRESENT = {
    Capability.TOKEN_PROMPTS: "add_request takes token ids",
    Capability.TOKEN_OUTPUTS: "a GenerationOutput has the token ids",
    Capability.STREAMING: "add_request(streaming=True): an output after each token",
    Capability.CACHED_TOKENS: "the engine tells none; counted at PagedAttentionCache.search_prefix_match, by request",
    Capability.ABORT: "cancel_request",
    Capability.CACHE_RESET: "PagedAttentionCache.reset, when no request is there; the hash tables are empty then",
    Capability.METRICS: "read from its scheduler and its pool",
    Capability.PREEMPTION_COUNTS: "the engine tells none; counted at Scheduler.add_waiting_request, by request",
    Capability.POOL_USAGE: "PagedAttentionCache.compute_free_capacity, without the blocks that are kept for reuse",
    Capability.SPAWNABLE: "started by Coldproof, in its own process",
}
ABSENT = {
    Capability.MIXED_ADAPTERS: "set_adapter is for the whole model: requests of other adapters wait",
    Capability.CACHE_SALT: "a request has no salt, and a block's hash takes tokens only",
    Capability.PRIORITY: "requests are served in the order of their arrival",
    Capability.PROMPT_LOGPROBS: "scores are told of the answer only",
    Capability.SEVERAL_ANSWERS: "num_return_sequences belongs to the manager, not to a request",
    Capability.STOP_STRINGS: "continuous batching ends an answer at token ids only",
    Capability.STRUCTURED_OUTPUT: "continuous batching takes no grammar",
    Capability.KV_EVENTS: "nothing is published about the cache",
    Capability.HIT_COUNTERS: "hits are counted nowhere",
    Capability.SECOND_TIER: "the CPU swap space keeps requests that were taken out of the batch, and no prefixes",
    Capability.PROVENANCE: "keys and values do not say whose they are",
    **NOT_OFFERED,
}
CHOICE = "load_adapter and set_adapter under pause(), before the first request of another name"
SWITCH = "set_adapter under pause()"
RUNTIME = "load_adapter and delete_adapter under pause()"
IN_PLACE = "delete_adapter and load_adapter of the same name under one pause()"


def capabilities(built: Built, version: str) -> dict[Capability, Support]:
    """Each capability with what says so."""
    config, cache = built.loop.manager.continuous_batching_config, built.loop.processor.cache
    groups = ", ".join(cache.cache_allocators)
    return {
        **{capability: Support(True, evidence) for capability, evidence in PRESENT.items()},
        **{capability: Support(False, evidence) for capability, evidence in ABSENT.items()},
        **adapters(),
        Capability.LOGPROBS: Support(
            config.return_logprobs, f"return_logprobs={config.return_logprobs}: of the token itself, with no runner-up"
        ),
        Capability.CHAT: chat(built),
        Capability.VERSION: Support(True, f"the package says {version}"),
        Capability.BLOCK_SIZE: Support(True, f"page_size={config.page_size}"),
        Capability.POOL_SIZE: Support(True, f"num_blocks={cache.num_blocks}"),
        Capability.SEVERAL_GROUPS: Support(len(cache.cache_allocators) > 1, f"the cache's allocators: {groups}"),
    }


def adapters() -> dict[Capability, Support]:
    """What PEFT adds, where it is installed."""
    there = importlib.util.find_spec("peft") is not None
    said = {
        Capability.ADAPTER_CHOICE: CHOICE,
        Capability.ADAPTER_SWITCH: SWITCH,
        Capability.RUNTIME_LORA: RUNTIME,
        Capability.LORA_IN_PLACE: IN_PLACE,
    }
    return {
        capability: Support(there, evidence if there else "peft is not installed")
        for capability, evidence in said.items()
    }


def chat(built: Built) -> Support:
    """Whether there is a template."""
    there = built.tokenizer is not None and built.tokenizer.chat_template is not None
    return Support(there, "the tokenizer's chat template" if there else "the tokenizer has no chat template")


def shape(built: Built) -> EngineShape:
    """Sizes as they came out once the cache was made."""
    config, cache = built.loop.manager.continuous_batching_config, built.loop.processor.cache
    return EngineShape(
        block_size=config.page_size,
        pool_blocks=cache.num_blocks,
        max_model_tokens=built.model.config.get_text_config().max_position_embeddings,
        adapter_slots=1,  # that are on at a time
        prefix_caching=cache.use_prefix_sharing,
        drops_all_below=math.ceil(built.loop.processor.scheduler.safety_margin * cache.num_blocks),
        uniform=list(cache.cache_allocators) == ["full_attention"],
        most_requests=config.max_requests_per_batch,
    )
