"""Capabilities and sizes of the Transformers engine, from its cache and its configuration."""

from __future__ import annotations

import importlib.util
import math

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.optional import OPTIONAL_ABSENT
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.transformers.setup import PipelineParts

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
}
ABSENT = {
    Capability.MIXED_ADAPTERS: "set_adapter affects the whole model: requests of other adapters wait",
    Capability.CACHE_SALT: "a request has no salt, and a block's hash contains only tokens",
    Capability.PRIORITY: "requests are served in the order of arrival",
    Capability.PROMPT_LOGPROBS: "logprobs are reported for the answer only",
    Capability.SEVERAL_ANSWERS: "num_return_sequences belongs to the manager, not to a request",
    Capability.STOP_STRINGS: "continuous batching ends an answer at token ids only",
    Capability.STRUCTURED_OUTPUT: "continuous batching accepts no grammar",
    Capability.KV_EVENTS: "the engine publishes no events",
    Capability.HIT_COUNTERS: "the engine does not count hits",
    Capability.SECOND_TIER: "the CPU swap space stores preempted requests, but no prefixes",
    Capability.PROVENANCE: "keys and values do not identify their writer",
    **OPTIONAL_ABSENT,
}
WITH_PEFT = {
    Capability.ADAPTER_SWITCH: "set_adapter under pause()",
    Capability.RUNTIME_LORA: "load_adapter and delete_adapter under pause()",
    Capability.LORA_IN_PLACE: "delete_adapter and load_adapter of the same name under one pause()",
    Capability.ADAPTER_CHOICE: (
        "load_adapter and set_adapter under pause(), before the first request of another adapter"
    ),
}


def capabilities(parts: PipelineParts, version: str) -> dict[Capability, Support]:
    """Return the support of each capability, with its evidence."""
    config, cache = parts.loop.manager.continuous_batching_config, parts.loop.processor.cache
    groups, peft = ", ".join(cache.cache_allocators), importlib.util.find_spec("peft") is not None
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
        Capability.VERSION: Support(True, f"package version {version}"),
        Capability.BLOCK_SIZE: Support(True, f"page_size={config.page_size}"),
        Capability.POOL_SIZE: Support(True, f"num_blocks={cache.num_blocks}"),
        Capability.SEVERAL_GROUPS: Support(len(cache.cache_allocators) > 1, f"the cache's allocators: {groups}"),
    }


def shape(parts: PipelineParts) -> EngineShape:
    """Return the sizes of the created cache."""
    config, cache = parts.loop.manager.continuous_batching_config, parts.loop.processor.cache
    return EngineShape(
        block_size=config.page_size,
        pool_blocks=cache.num_blocks,
        max_model_tokens=parts.model.config.get_text_config().max_position_embeddings,
        adapter_slots=1,  # active at the same time
        prefix_caching=cache.use_prefix_sharing,
        drops_all_below=math.ceil(parts.loop.processor.scheduler.safety_margin * cache.num_blocks),
        uniform=list(cache.cache_allocators) == ["full_attention"],
        most_requests=config.max_requests_per_batch,
    )
