"""Capabilities, sizes and cache settings of the in-process engine, and its chat template."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.kv_events import ALGORITHM
from coldproof.adapters.protocol.pooling import OF_ONE_VECTOR, TASK_CAPABILITIES
from coldproof.adapters.protocol.requests import Message
from coldproof.adapters.protocol.shape import EngineShape, GroupShape, ImageShape
from coldproof.adapters.server.probes import CACHE_FIELDS, NO_SWITCH, provenance_support
from coldproof.adapters.server.vllm_metrics import counts_first_lookups
from coldproof.adapters.vllm.content_support import (
    EMBEDS_FLAG,
    IDEFICS,
    NO_IMAGES,
    flag_support,
    image_shape,
    image_support,
    tower_support,
)
from coldproof.adapters.vllm.inproc.process import vllm_module
from coldproof.adapters.vllm.inproc.sessions import session_support
from coldproof.adapters.vllm.inproc.setup import InprocEngineParts
from coldproof.adapters.vllm.inproc.weights import weight_controls
from coldproof.adapters.vllm.kv_tiers import KEEPING_ANSWERS, LMCACHE, stores_before_eviction, tier_blocks
from coldproof.adapters.vllm.releases import (
    chat_template,
    find_module,
    hash_seed,
    hit_alignment,
    in_flight_tokens,
    kept_every,
    weight_transfer_config,
    window_tail,
)

CORE = (
    Capability.TOKEN_PROMPTS,
    Capability.TOKEN_OUTPUTS,
    Capability.CACHED_TOKENS,
    Capability.LOGPROBS,
    Capability.CACHE_SALT,
    Capability.ABORT,
    Capability.PROMPT_LOGPROBS,
    Capability.SEVERAL_ANSWERS,
    Capability.CACHE_RESET,
    Capability.METRICS,
    Capability.HIT_COUNTERS,
    Capability.PREEMPTION_COUNTS,
    Capability.POOL_USAGE,
)


def capabilities(
    parts: InprocEngineParts, version: str, *, digests: bool, persistent: Support
) -> dict[Capability, Support]:
    """Return the support of every capability, from the engine core's interface and this engine's configuration.

    `digests`: the engine has the fingerprint worker, which stores digests instead of keys and values.
    `persistent`: whether KV outlives the engine.
    """
    settings = parts.engine.vllm_config
    tokenizer = parts.engine.renderer.tokenizer is not None
    text = Support(tokenizer, "a tokenizer is loaded" if tokenizer else "no tokenizer is loaded")
    adapters = settings.lora_config is not None
    lora = Support(adapters, f"--enable-lora is {'set' if adapters else 'not set'}")
    policy = settings.scheduler_config.policy
    sizes = shape(parts, digests=digests)
    published = parts.events is not None
    return {
        **dict.fromkeys(CORE, Support(True, "the engine core's own interface")),
        Capability.STREAMING: Support(True, "tokens are delivered after each step"),
        Capability.STOP_STRINGS: text,
        Capability.STRUCTURED_OUTPUT: text,
        Capability.CHAT: chat_support(parts),
        Capability.ADAPTER_CHOICE: lora,
        Capability.MIXED_ADAPTERS: lora,
        Capability.ADAPTER_SWITCH: Support(False, NO_SWITCH),
        Capability.RUNTIME_LORA: lora,
        Capability.LORA_IN_PLACE: lora,
        Capability.PRIORITY: Support(policy == "priority", f"the scheduling policy is {policy}"),
        Capability.KV_EVENTS: Support(published, "taken from the scheduler" if published else "not enabled"),
        Capability.VERSION: Support(True, f"package version {version}"),
        Capability.BLOCK_SIZE: Support(True, f"the engine's configuration has block_size={sizes.block_size}"),
        Capability.POOL_SIZE: Support(True, f"the engine's configuration has {sizes.pool_blocks} usable blocks"),
        Capability.SECOND_TIER: tier_support(settings.kv_transfer_config),
        Capability.SPAWNABLE: Support(True, "started by Coldproof, in its own process"),
        Capability.PROVENANCE: provenance_support(digests=digests),
        Capability.SEVERAL_GROUPS: groups_support(sizes.groups),
        **{capability: Support(False, evidence) for capability, evidence in OPTIONAL_ABSENT.items()},
        **weight_controls(
            parts,
            digests=digests,
            on_cpu=vllm_module("platforms").current_platform.is_cpu(),
            transfers=weight_transfer_config(settings) is not None,
            outside=copies_outside(settings.kv_transfer_config),
        ),
        Capability.PERSISTENT_KV: persistent,
        Capability.SESSIONS: session_support(parts.engine),
        Capability.DRAFT_COUNTS: drafts_support(settings.speculative_config),
        **dict.fromkeys((Capability.EMBEDDING_ROWS, Capability.HIDDEN_ROWS), rows_support(settings.model_config)),
        **image_support(image_of(settings.model_config)),
        Capability.TOWER_ADAPTERS: tower_support(
            image_of(settings.model_config),
            enabled=bool(getattr(settings.lora_config, "enable_tower_connector_lora", False)),
        ),
        **side_resets(parts, image_of(settings.model_config)),
        Capability.EVENT_RESTARTS: Support(
            published, "an engine that follows another one has vLLM's own publisher" if published else "no KV events"
        ),
        **reset_scopes(parts, tier_support(settings.kv_transfer_config)),
        Capability.TIER_FAILURES: Support(
            parts.tier_server is not None,
            "Coldproof starts the tier's server" if parts.tier_server is not None else "the tier has no server",
        ),
        **pooling_support(parts),
        Capability.TIER_FILES: file_support(settings.kv_transfer_config),
        Capability.TRANSFER_LIMITS: limit_support(settings.kv_transfer_config),
        Capability.SLOW_TIER: slow_tier_support(settings.kv_transfer_config),
        Capability.SEVERAL_FEATURES: features_support(settings, sizes, events=published),
    }


def tiers_behind(transfer: Any) -> list[str]:
    """Return the types of the tiers behind host memory, such as "fs"."""
    tiers = [] if transfer is None else transfer.kv_connector_extra_config.get("secondary_tiers", [])
    return [str(tier.get("type")) for tier in tiers]


def file_support(transfer: Any) -> Support:
    """Return whether a tier keeps KV in files of a folder of this engine's."""
    behind = tiers_behind(transfer)
    return Support("fs" in behind, f"tiers behind host memory: {len(behind)}")


def limit_support(transfer: Any) -> Support:
    """Return whether the tier takes limits for a request: OffloadingConnector, in versions that have both."""
    name = None if transfer is None else transfer.kv_connector
    place = find_module("distributed.kv_transfer.kv_connector.v1.offloading.scheduler")
    state = None if place is None else getattr(vllm_module(place), "RequestOffloadState", None)
    known = {"max_load_tokens", "max_offload_tokens"} <= set(getattr(state, "__dataclass_fields__", {}))
    how = f"the connector is {name or 'none'}" + ("" if known else ", and this version takes no limits")
    return Support(name == "OffloadingConnector" and known, how)


def slow_tier_support(transfer: Any) -> Support:
    """Return whether there is a tier behind the second one, and this version counts its hits apart."""
    behind = tiers_behind(transfer)
    counted = find_module("v1.metrics.cache_hit_source") is not None
    how = f"behind host memory: {', '.join(behind) or 'nothing'}" + (
        "" if counted else ", and this version counts all hits as one"
    )
    return Support(bool(behind) and counted, how)


def features_support(settings: Any, sizes: EngineShape, *, events: bool) -> Support:
    """Return whether two or more features are on that change what is cached, or when it is looked up or published."""
    scheduler = settings.scheduler_config
    block = max((sizes.block_size or 0, *(group.block for group in sizes.groups)))
    features = {
        "a second tier": sizes.second_tier,
        "several groups of layers": len(sizes.groups) > 1,
        "images": sizes.image is not None,
        "embedding rows": sizes.row_width is not None,
        "KV events": events,
        "drafts": settings.speculative_config is not None,
        "priorities": scheduler.policy == "priority",
        "chunks of less than a block": min(scheduler.max_num_batched_tokens, chunk_of_one(scheduler)) < block,
        "hits that end inside a block": sizes.hits_inside,
        "whole prompts": not scheduler.enable_chunked_prefill,
    }
    on = [name for name, is_on in features.items() if is_on]
    return Support(len(on) > 1, f"features that are on: {', '.join(on) or 'none'}")


def chunk_of_one(scheduler: Any) -> float:
    """Return how many tokens of one prompt a step computes at most."""
    return int(scheduler.long_prefill_token_threshold) or math.inf


GENERATION = (
    Capability.TOKEN_OUTPUTS,
    Capability.STREAMING,
    Capability.LOGPROBS,
    Capability.PROMPT_LOGPROBS,
    Capability.SEVERAL_ANSWERS,
    Capability.STOP_STRINGS,
    Capability.STRUCTURED_OUTPUT,
    Capability.CHAT,
    Capability.ABORT,
    Capability.SESSIONS,
)


AT_ROUTES = "scores are classifications or embeddings here: only a server has routes for them"


def pooling_support(parts: InprocEngineParts) -> dict[Capability, Support]:
    """Return the support of pooled answers and, where an engine pools, that it generates nothing."""
    tasks = parts.engine.get_supported_tasks()
    how = f"the engine's tasks are {', '.join(sorted(tasks))}"
    pools = "generate" not in tasks
    found = {need: Support(pools and task.value in tasks, how) for task, need in TASK_CAPABILITIES.items()}
    found |= {need: Support(False, AT_ROUTES) for task, need in TASK_CAPABILITIES.items() if task.of_texts}
    found[Capability.POOLING] = Support(any(found[need].present for need in OF_ONE_VECTOR), how)
    return found | (dict.fromkeys(GENERATION, Support(False, how)) if pools else {})


def drafts_support(speculative: Any) -> Support:
    """Return whether drafted and accepted tokens are counted, which they are with speculative decoding."""
    if speculative is None:
        return Support(False, "speculative decoding is not enabled")
    return Support(True, f"the engine counts the drafts of speculative decoding, method {speculative.method}")


def side_resets(parts: InprocEngineParts, image: ImageShape | None) -> dict[Capability, Support]:
    """Return which caches of images can be reset, by this version's methods."""
    methods = {Capability.RESET_ENCODER: "reset_encoder_cache", Capability.RESET_PROCESSOR: "reset_mm_cache"}
    if image is None:
        return dict.fromkeys(methods, NO_IMAGES)
    return {
        capability: Support(there := hasattr(parts.engine, name), f"the engine {'has' if there else 'lacks'} {name}")
        for capability, name in methods.items()
    }


def image_of(model: Any) -> ImageShape | None:
    """Return the images that a model takes; None if it takes none of a known size."""
    config = model.hf_config
    if config.model_type != IDEFICS:
        return None
    vision = config.vision_config
    sizes = {"side": int(vision.image_size), "patch": int(vision.patch_size), "scale": int(config.scale_factor)}
    return image_shape(IDEFICS, **sizes)


def rows_support(model: Any) -> Support:
    """Return whether prompts may have embedding rows, by the flag."""
    return flag_support(EMBEDS_FLAG, enabled=bool(getattr(model, "enable_prompt_embeds", False)))


def reset_scopes(parts: InprocEngineParts, tier: Support) -> dict[Capability, Support]:
    """Return what a reset can cover besides the prefix cache, by the parameters of this version's method."""
    known = inspect.signature(parts.engine.reset_prefix_cache).parameters
    how = f"the parameters of reset_prefix_cache are: {', '.join(known) or 'none'}"
    tiers = "reset_connector" in known
    return {
        Capability.RESET_RUNNING: Support("reset_running_requests" in known, how),
        Capability.RESET_SECOND_TIER: tier if tiers and tier.present is not True else Support(tiers, how),
    }


def row_width(model: Any) -> int | None:
    """Return the number of values of an embedding row; None if prompts may have none."""
    return int(model.get_inputs_embeds_size()) if rows_support(model).present else None


def shape(parts: InprocEngineParts, *, digests: bool) -> EngineShape:
    """Return the sizes of a started engine. `digests`: it has the fingerprint worker, whose scores are exact."""
    settings = parts.engine.vllm_config
    cache, lora, scheduler = settings.cache_config, settings.lora_config, settings.scheduler_config
    transfer = settings.kv_transfer_config
    full = vllm_module("v1.kv_cache_interface").FullAttentionSpec
    pool = parts.core.scheduler.kv_cache_config
    specs = [group.kv_cache_spec for group in pool.kv_cache_groups]
    states = any(isinstance(spec, vllm_module("v1.kv_cache_interface").MambaSpec) for spec in specs)
    certain = transfer is None and settings.speculative_config is None  # else other rules apply to hits
    uniform = len(specs) == 1 and isinstance(specs[0], full)
    blocks = [spec.block_size for spec in specs]
    block_bytes = sum(tensor.size for tensor in pool.kv_cache_tensors) // pool.num_blocks
    return EngineShape(
        block_size=hit_alignment(cache, blocks),
        pool_blocks=cache.num_gpu_blocks - 1,  # block 0 is vLLM's null block
        max_model_tokens=settings.model_config.max_model_len,
        adapter_slots=None if lora is None else lora.max_loras,
        prefix_caching=cache.enable_prefix_caching,
        uniform=uniform,
        kept_every=kept_every(cache, blocks, states=states) if certain else None,
        most_requests=scheduler.max_num_seqs,
        step_tokens=scheduler.max_num_batched_tokens,
        resumes_first=True,  # Scheduler._preempt_request prepends it to the queue
        preempts_latest=True,  # SchedulerConfig.policy: the time of arrival decides ties; Scheduler.schedule
        second_tier=transfer is not None,
        tier_blocks=tier_blocks(transfer, block_bytes=block_bytes) if transfer is not None and uniform else None,
        tier_keeps_answers=transfer is not None and transfer.kv_connector in KEEPING_ANSWERS,
        evicts_oldest=transfer is None or not stores_before_eviction(transfer.kv_connector_extra_config),
        failed_load_ends_request=transfer is not None and transfer.kv_load_failure_policy == "fail",
        groups=tuple(group_shape(spec, settings) for spec in specs),
        counts_first_lookups=counts_first_lookups(vllm_module("version").__version__),
        image=image_of(settings.model_config),
        drops_block=drops_blocks(settings.speculative_config),
        rounds=not digests,
        row_width=row_width(settings.model_config),
    )


def drops_blocks(speculative: Any) -> bool:
    """Return whether hits lack a block because of heads that draft, such as EAGLE's."""
    return speculative is not None and bool(getattr(speculative, "use_eagle_block_drop", speculative.use_eagle)())


def group_shape(spec: Any, settings: Any) -> GroupShape:
    """Return a group's shape. For windows and states it includes the number of blocks that vLLM plans per request."""
    interface = vllm_module("v1.kv_cache_interface")
    if isinstance(spec, interface.MambaSpec):
        return GroupShape(spec.block_size, spec.max_memory_usage_bytes(settings) // spec.page_size_bytes, tail=1)
    if isinstance(spec, interface.SlidingWindowSpec):
        longest = settings.model_config.max_model_len
        most = spec.max_admission_blocks_per_request(in_flight_tokens(settings), longest)
        return GroupShape(spec.block_size, most, tail=window_tail(spec))
    return GroupShape(spec.block_size)


def tier_support(transfer: Any) -> Support:
    """Return whether a KV connector is configured, and which."""
    if transfer is None or transfer.kv_connector is None:
        return Support(False, "no KV connector is configured")
    return Support(True, f"the KV connector is {transfer.kv_connector}")


def cache_settings(settings: Any) -> dict[str, str]:
    """Return the cache settings that the server publishes in its metrics."""
    cache = settings.cache_config
    return {f"cache.{name}": str(getattr(cache, name)) for name in CACHE_FIELDS if hasattr(cache, name)}


def known_seed(cache: Mapping[str, str]) -> str | None:
    """Return the default seed of the root hash, which newer versions of vLLM fix for sha256; None if it is unknown."""
    return hash_seed() if cache.get(ALGORITHM, "").startswith("sha256") else None


def copies_outside(transfer: Any) -> bool:
    """Return whether the second tier copies in a process of its own, which no step of the engine waits for."""
    return transfer is not None and transfer.kv_connector == LMCACHE


def groups_support(groups: tuple[GroupShape, ...]) -> Support:
    """Return whether the engine has several KV-cache groups."""
    blocks = ", ".join(str(group.block) for group in groups)
    count = f"{len(groups)} KV-cache group{'s' if len(groups) > 1 else ''}"
    return Support(len(groups) > 1, f"the engine's configuration has {count}, with blocks of {blocks} tokens")


def chat_support(parts: InprocEngineParts) -> Support:
    """Return whether the engine can render a chat message."""
    try:
        count = len(chat_ids(parts, (Message("user", "Hello."),)))
    except Exception as problem:  # noqa: BLE001 - whatever the reason, chats do not work
        return Support(False, f"no chat template: {problem}")
    return Support(True, f"the chat template renders a greeting to {count} tokens")


def chat_ids(parts: InprocEngineParts, messages: tuple[Message, ...]) -> tuple[int, ...]:
    """Return the token ids of a chat, rendered as by the server. Raises ValueError without a chat template."""
    renderers, arguments = vllm_module("renderers"), parts.arguments
    params = renderers.ChatParams(
        chat_template=chat_template(arguments.chat_template),
        chat_template_content_format=arguments.chat_template_content_format,
        chat_template_kwargs={
            **(arguments.default_chat_template_kwargs or {}),
            "add_generation_prompt": True,
            "continue_final_message": False,
            "tools": None,
            "tokenize": False,
        },
    )
    chat = [{"role": message.role, "content": message.content} for message in messages]
    _, (rendered,) = parts.engine.renderer.render_chat([chat], params)
    return tuple(rendered["prompt_token_ids"])
