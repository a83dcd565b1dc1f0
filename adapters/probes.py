"""Finds out what a server can do by doing it: every capability comes with the observation behind it."""

from __future__ import annotations

import random
import secrets
from collections.abc import Callable

import msgspec

from adapters.base import (
    Capability,
    Completion,
    CompletionRequest,
    EngineError,
    EngineShape,
    Metrics,
    RequestRefused,
    Support,
    Surface,
)
from adapters.counting import counts_first_lookups
from adapters.openai_http import Wire
from adapters.probe_surface import attempt, probe_surface
from adapters.rare import NOT_OFFERED

FIRST_TOKEN, LAST_TOKEN = 32, 126
PROBE_TOKENS = 512  # more than two blocks of any usual size (16 ... 256), so that asking twice must hit
NO_ADAPTER = "no adapter at hand to try: name the served model's folder with --model, or give two with --adapter"
NO_SWITCH = "vLLM's requests name their adapter; there is none for all of them"
NO_EVENTS = "Coldproof listens only to a server that it started to publish them: choose a cell that does (events)"
CACHE_FIELDS = (
    "block_size",
    "num_gpu_blocks",
    "enable_prefix_caching",
    "prefix_caching_hash_algo",
    "cache_dtype",
    "prefix_cache_retention_interval",
    "sliding_window",
)


class Probed(msgspec.Struct, frozen=True, kw_only=True):
    """All that was found out. `null_is_miss`: counts exist, and this engine writes null for none."""

    version: str | None
    base_model: str
    shape: EngineShape
    capabilities: dict[Capability, Support]
    cache_config: dict[str, str]
    null_is_miss: bool


def probe(wire: Wire, *, spawned: bool, adapter_path: str | None) -> Probed:
    """Probe a server that answers. `adapter_path`: an adapter that fits its model, to try loading.

    Raises EngineError when the server does not even list a model.
    """
    served = served_model(wire)
    base_model, max_tokens = served.name, served.max_tokens
    families = wire.scrape()
    cache_config = first_labels(families, "vllm:cache_config")
    found: dict[Capability, Support] = {
        **{capability: Support(False, evidence) for capability, evidence in NOT_OFFERED.items()},
        Capability.SPAWNABLE: Support(spawned, "started by Coldproof" if spawned else "attached by URL"),
        Capability.PROVENANCE: provenance_support(digests=False),
        Capability.SEVERAL_GROUPS: groups_support(cache_config),
        Capability.METRICS: metrics_support(families),
        Capability.BLOCK_SIZE: published(cache_config, "block_size"),
        Capability.POOL_SIZE: published(cache_config, "num_gpu_blocks"),
        Capability.KV_EVENTS: Support(None, NO_EVENTS),
    }
    version = server_version(wire)
    found[Capability.VERSION] = Support(version is not None, f"/version says {version}" if version else "no /version")
    null_is_miss = probe_completions(wire, base_model, max_tokens, bool(cache_config), found)
    probe_surface(wire, base_model, found)
    probe_adapters(wire, adapter_path, found)
    metrics = wire.metrics()
    found[Capability.SECOND_TIER] = tier_support(metrics)
    found[Capability.HIT_COUNTERS] = told_by(metrics, "hit_tokens")
    found[Capability.PREEMPTION_COUNTS] = told_by(metrics, "preemptions")
    found[Capability.POOL_USAGE] = told_by(metrics, "pool_usage")
    slots = first_labels(wire.scrape(), "vllm:lora_requests_info").get("max_lora")
    pool = number(cache_config.get("num_gpu_blocks"))
    caching = cache_config.get("enable_prefix_caching")
    return Probed(
        version=version,
        base_model=base_model,
        shape=EngineShape(
            block_size=hit_unit(cache_config),
            pool_blocks=None if pool is None else pool - 1,  # block 0 is vLLM's null block
            max_model_tokens=max_tokens,
            adapter_slots=number(slots),
            prefix_caching=None if caching is None else caching == "True",
            uniform=is_uniform(cache_config),
            second_tier=found[Capability.SECOND_TIER].present is True,
            counts_first_lookups=found[Capability.METRICS].present is True and counts_first_lookups(version),
        ),
        capabilities=found,
        cache_config={f"cache.{key}": cache_config[key] for key in CACHE_FIELDS if key in cache_config},
        null_is_miss=null_is_miss,
    )


def told_by(metrics: Metrics, name: str) -> Support:
    """Whether the metrics have a counter or gauge."""
    there = getattr(metrics, name) is not None
    return Support(there, f"the metrics {'have' if there else 'do not have'} {name}")


def hit_unit(cache_config: dict[str, str]) -> int | None:
    """Tokens of the unit that hits come in: a block, or several where groups of layers have other block sizes."""
    return number(cache_config.get("cache_hit_alignment_tokens")) or number(cache_config.get("block_size"))


def groups_support(cache_config: dict[str, str]) -> Support:
    """Whether layers of several kinds keep their blocks apart, by the pool's size in tokens."""
    known = number(cache_config.get("kv_cache_size_tokens")) is not None
    said = "is" if is_uniform(cache_config) else "is not"
    how = f"the pool's size in tokens {said} its blocks times their size"
    return Support(not is_uniform(cache_config), how if known else "the pool's size in tokens is not published")


def is_uniform(cache_config: dict[str, str]) -> bool:
    """Whether every layer keeps every block. With sliding windows or states among the layers, the tokens that the pool
    is said to hold are not its blocks times their size."""
    tokens, blocks, size = (
        number(cache_config.get(key)) for key in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    )
    return tokens is None or blocks is None or size is None or tokens == blocks * size


class ServedModel(msgspec.Struct, frozen=True):
    """The base model as the server lists it; `root` is where it says it read it from."""

    name: str
    max_tokens: int
    root: str | None


def served_model(wire: Wire) -> ServedModel:
    """The first model that is no adapter. Raises EngineError when there is none."""
    response = wire.get("/v1/models")
    if response.status_code == 401:
        raise EngineError("the server wants an API key: set COLDPROOF_API_KEY to the right one")
    try:
        model = next(m for m in response.json()["data"] if not m.get("parent"))
        return ServedModel(str(model["id"]), int(model.get("max_model_len") or 2048), model.get("root"))
    except (ValueError, KeyError, StopIteration, TypeError, AttributeError) as problem:
        raise EngineError(
            f"{wire.printable_url} lists no model at /v1/models (HTTP {response.status_code}): "
            "is it an OpenAI-compatible server?"
        ) from problem


def metrics_support(families: dict[str, list[tuple[dict[str, str], float]]] | None) -> Support:
    """Whether the counters that the checkers compare with are there."""
    if families is None:
        return Support(False, "no /metrics")
    present = bool(families.get("vllm:prefix_cache_queries"))
    return Support(present, f"/metrics {'publishes' if present else 'lacks'} vllm:prefix_cache_queries")


def tier_support(metrics: Metrics) -> Support:
    """Whether anything was looked up in a second tier: vLLM counts that only where a connector is configured."""
    looked_up = metrics.external_queried_tokens
    if looked_up is None:
        return Support(None, "the metrics do not say what was looked up in a second tier")
    return Support(looked_up > 0, f"/metrics counts {looked_up:.0f} tokens looked up in a second tier")


def server_version(wire: Wire) -> str | None:
    """What /version says, if it exists."""
    response = wire.get("/version")
    if response.status_code != 200:
        return None
    try:
        return str(response.json()["version"])
    except (ValueError, KeyError, TypeError):
        return None


def probe_completions(wire: Wire, model: str, max_tokens: int, is_vllm: bool, found: dict[Capability, Support]) -> bool:
    """Ask a few prompts and note what came back; whether this engine writes null for a miss."""
    length = min(PROBE_TOKENS, max_tokens // 2)
    prompt = tuple(random.SystemRandom().choices(range(FIRST_TOKEN, LAST_TOKEN + 1), k=length))

    def ask(salt: str | None = None, *, logprobs: bool = False) -> Completion:
        return wire.complete(
            CompletionRequest(
                model=model, prompt=prompt, max_tokens=2, cache_salt=salt, surface=Surface(logprobs=logprobs)
            )
        )

    first = attempt(found, Capability.TOKEN_PROMPTS, "a list of token ids as prompt was accepted", ask)
    if first is None:
        no = Support(False, "token-id prompts are refused")
        found |= dict.fromkeys((Capability.TOKEN_OUTPUTS, Capability.STREAMING, Capability.LOGPROBS), no)
        found |= dict.fromkeys((Capability.CACHED_TOKENS, Capability.CACHE_SALT, Capability.CACHE_RESET), no)
        return False
    count = len(first.tokens)
    found[Capability.TOKEN_OUTPUTS] = Support(count > 0, f"{count} token ids returned for max_tokens 2")
    found[Capability.STREAMING] = Support(count > 0, f"{count} tokens streamed")
    again = ask()
    found[Capability.CACHED_TOKENS] = Support(
        again.cached_tokens is not None, f"cached_tokens {first.cached_tokens} at first, {again.cached_tokens} again"
    )
    scored = attempt(found, Capability.LOGPROBS, "", lambda: ask(logprobs=True))
    if scored is not None:
        gaps = [t.gap for t in scored.tokens if t.gap is not None]
        found[Capability.LOGPROBS] = Support(bool(gaps), f"{len(gaps)} top-2 gaps returned")
    probe_salt(found, ask, again, is_vllm=is_vllm)
    probe_reset(wire, found, ask)
    return first.cached_tokens is None and again.cached_tokens is not None


def probe_salt(
    found: dict[Capability, Support], ask: Callable[[str], Completion], warm: Completion, *, is_vllm: bool
) -> None:
    """A salt counts as offered where the engine is known to have it, or where it is seen to work.

    An engine that has salts and ignores one violates SALT-1; a server that never heard of them does not.
    """
    salted = attempt(found, Capability.CACHE_SALT, "", lambda: ask(f"probe-{secrets.token_hex(8)}"))
    if salted is None:
        return
    works = bool(warm.cached_tokens) and not salted.cached_tokens
    said = f"cached_tokens {warm.cached_tokens} unsalted, {salted.cached_tokens} under an unused salt"
    found[Capability.CACHE_SALT] = Support(works or is_vllm, said)


def probe_reset(wire: Wire, found: dict[Capability, Support], ask: Callable[[], Completion]) -> None:
    """Reset and look whether the prompt still hits."""
    try:
        done, body = wire.reset()
    except RequestRefused as problem:
        found[Capability.CACHE_RESET] = Support(False, f"{wire.reset_path}: HTTP {problem.status}")
        return
    after = ask().cached_tokens
    found[Capability.CACHE_RESET] = Support(
        done, f"{wire.reset_path} says {body[:60].strip()}; cached_tokens afterwards {after}"
    )


def probe_adapters(wire: Wire, path: str | None, found: dict[Capability, Support]) -> None:
    """Load, replace in place and unload a real adapter under a name of our own."""
    probe_loading(wire, path, found)
    named = found[Capability.RUNTIME_LORA]  # a name that was loaded is what a request chooses by
    found |= {Capability.ADAPTER_CHOICE: named, Capability.MIXED_ADAPTERS: named}
    found[Capability.ADAPTER_SWITCH] = Support(False, NO_SWITCH)


def probe_loading(wire: Wire, path: str | None, found: dict[Capability, Support]) -> None:
    """What comes of loading, replacing and unloading."""
    wanted = (Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE)
    if path is None:
        found |= dict.fromkeys(wanted, Support(None, NO_ADAPTER))
        return
    name = f"coldproof-probe-{secrets.token_hex(4)}"
    body = {"lora_name": name, "lora_path": path}
    loaded = attempt(found, wanted[0], "loaded an adapter", lambda: wire.post(wire.load_path, body))
    if loaded is None:
        found[wanted[1]] = Support(False, found[wanted[0]].evidence)
        return
    attempt(
        found,
        wanted[1],
        "replaced an adapter with load_inplace",
        lambda: wire.post(wire.load_path, {**body, "load_inplace": True}),
    )
    attempt(
        found,
        wanted[0],
        "loaded and unloaded an adapter",
        lambda: wire.post(wire.unload_path, {"lora_name": name}),
    )


def published(cache_config: dict[str, str], key: str) -> Support:
    """A number in the cache configuration that the metrics publish."""
    value = number(cache_config.get(key))
    if value is None:
        return Support(None, f"the metrics do not say {key}")
    return Support(True, f"vllm:cache_config_info says {key}={value}")


def first_labels(families: dict[str, list[tuple[dict[str, str], float]]] | None, name: str) -> dict[str, str]:
    """The labels of a family's first sample. The parser strips `_info` from names of info families."""
    for key in (name, f"{name}_info", name.removesuffix("_info")):
        samples = (families or {}).get(key)
        if samples:
            return samples[0][0]
    return {}


def number(text: str | None) -> int | None:
    """An integer out of a label; 'None' and absence are unknown."""
    return int(text) if text is not None and text.isdigit() else None


def provenance_support(*, digests: bool) -> Support:
    """Whether the engine can tell whose KV a request read: only if it keeps digests."""
    said = (
        "the fingerprint worker's digests name their writer" if digests else "keys and values do not say whose they are"
    )
    return Support(digests, said)
