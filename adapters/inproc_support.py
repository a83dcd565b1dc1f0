"""What an engine in this process says of itself: sizes, settings, capabilities, and what its chat template makes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from adapters.base import Capability, EngineShape, GroupShape, Message, Support
from adapters.counting import counts_first_lookups
from adapters.inproc_setup import Built, vllm_module
from adapters.kv_events import ALGORITHM
from adapters.probes import CACHE_FIELDS, NO_SWITCH, provenance_support
from adapters.rare import NOT_OFFERED

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


def capabilities(built: Built, version: str, *, digests: bool) -> dict[Capability, Support]:
    """Every capability, by the engine core's own interface and this engine's configuration.

    `digests`: the fingerprint worker keeps them in place of keys and values.
    """
    settings = built.engine.vllm_config
    tokenizer = built.engine.renderer.tokenizer is not None
    text = Support(tokenizer, "a tokenizer is loaded" if tokenizer else "no tokenizer is loaded")
    adapters = settings.lora_config is not None
    lora = Support(adapters, f"--enable-lora is {'set' if adapters else 'not set'}")
    policy = settings.scheduler_config.policy
    sizes = shape(built)
    return {
        **dict.fromkeys(CORE, Support(True, "the engine core's own interface")),
        Capability.STREAMING: Support(True, "tokens are delivered after each step"),
        Capability.STOP_STRINGS: text,
        Capability.STRUCTURED_OUTPUT: text,
        Capability.CHAT: chat_support(built),
        Capability.ADAPTER_CHOICE: lora,
        Capability.MIXED_ADAPTERS: lora,
        Capability.ADAPTER_SWITCH: Support(False, NO_SWITCH),
        Capability.RUNTIME_LORA: lora,
        Capability.LORA_IN_PLACE: lora,
        Capability.PRIORITY: Support(policy == "priority", f"the scheduling policy is {policy}"),
        Capability.KV_EVENTS: Support(
            built.mail is not None, "taken from the scheduler" if built.mail is not None else "not switched on"
        ),
        Capability.VERSION: Support(True, f"the package says {version}"),
        Capability.BLOCK_SIZE: Support(True, f"the engine's configuration says block_size={sizes.block_size}"),
        Capability.POOL_SIZE: Support(True, f"the engine's configuration says {sizes.pool_blocks} usable blocks"),
        Capability.SECOND_TIER: tier_support(settings.kv_transfer_config),
        Capability.SPAWNABLE: Support(True, "started by Coldproof, in its own process"),
        Capability.PROVENANCE: provenance_support(digests=digests),
        Capability.SEVERAL_GROUPS: groups_support(sizes.groups),
        **{capability: Support(False, evidence) for capability, evidence in NOT_OFFERED.items()},
    }


def shape(built: Built) -> EngineShape:
    """Sizes as configured once the engine has started."""
    settings = built.engine.vllm_config
    cache, lora, scheduler = settings.cache_config, settings.lora_config, settings.scheduler_config
    transfer = settings.kv_transfer_config
    full = vllm_module("v1.kv_cache_interface").FullAttentionSpec
    specs = [group.kv_cache_spec for group in built.core.scheduler.kv_cache_config.kv_cache_groups]
    return EngineShape(
        block_size=cache.cache_hit_alignment_tokens or cache.block_size,
        pool_blocks=cache.num_gpu_blocks - 1,  # block 0 is vLLM's null block
        max_model_tokens=settings.model_config.max_model_len,
        adapter_slots=None if lora is None else lora.max_loras,
        prefix_caching=cache.enable_prefix_caching,
        uniform=len(specs) == 1 and isinstance(specs[0], full),
        most_requests=scheduler.max_num_seqs,
        second_tier=transfer is not None,
        failed_load_ends_request=transfer is not None and transfer.kv_load_failure_policy == "fail",
        groups=tuple(group_shape(spec, settings) for spec in specs),
        counts_first_lookups=counts_first_lookups(vllm_module("version").__version__),
    )


def group_shape(spec: Any, settings: Any) -> GroupShape:
    """A group's, from its KV-cache spec: with a window or a state, what vLLM itself reckons a request to hold."""
    interface = vllm_module("v1.kv_cache_interface")
    if isinstance(spec, interface.MambaSpec):
        return GroupShape(spec.block_size, spec.max_memory_usage_bytes(settings) // spec.page_size_bytes)
    if isinstance(spec, interface.SlidingWindowSpec):
        longest = settings.model_config.max_model_len
        return GroupShape(
            spec.block_size, spec.max_admission_blocks_per_request(settings.max_in_flight_tokens, longest)
        )
    return GroupShape(spec.block_size)


def tier_support(transfer: Any) -> Support:
    """Whether a connector is configured, and which."""
    if transfer is None or transfer.kv_connector is None:
        return Support(False, "no KV connector is configured")
    return Support(True, f"the KV connector is {transfer.kv_connector}")


def cache_settings(settings: Any) -> dict[str, str]:
    """The cache's settings that the server publishes in its metrics."""
    cache = settings.cache_config
    return {f"cache.{name}": str(getattr(cache, name)) for name in CACHE_FIELDS if hasattr(cache, name)}


def known_seed(cache: Mapping[str, str]) -> str | None:
    """The root's seed where nobody gave one. Newer versions of vLLM have a fixed one, for cryptographic algorithms."""
    seed: str | None = getattr(vllm_module("v1.core.kv_cache_utils"), "DEFAULT_NONE_HASH_SEED", None)
    return seed if cache.get(ALGORITHM, "").startswith("sha256") else None


def groups_support(groups: tuple[GroupShape, ...]) -> Support:
    """Whether there is more than one."""
    blocks = ", ".join(str(group.block) for group in groups)
    return Support(len(groups) > 1, f"the engine's configuration has {len(groups)}, with blocks of {blocks} tokens")


def chat_support(built: Built) -> Support:
    """Whether the template makes something of a message."""
    try:
        count = len(chat_ids(built, (Message("user", "Hello."),)))
    except Exception as problem:  # noqa: BLE001 - whatever it is, there are no chats
        return Support(False, f"no chat template: {problem}")
    return Support(True, f"the chat template makes {count} tokens of a greeting")


def chat_ids(built: Built, messages: tuple[Message, ...]) -> tuple[int, ...]:
    """The token ids that the server's chat entry point would make. Raises ValueError without a template."""
    renderers, arguments = vllm_module("renderers"), built.arguments
    template = vllm_module("renderers.chat_utils").load_chat_template(arguments.chat_template)
    how = renderers.ChatParams(
        chat_template=template,
        chat_template_content_format=arguments.chat_template_content_format,
        chat_template_kwargs={
            **(arguments.default_chat_template_kwargs or {}),
            "add_generation_prompt": True,
            "continue_final_message": False,
            "tools": None,
            "tokenize": False,
        },
    )
    said = [{"role": message.role, "content": message.content} for message in messages]
    _, (rendered,) = built.engine.renderer.render_chat([said], how)
    return tuple(rendered["prompt_token_ids"])
