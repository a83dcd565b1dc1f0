"""Probe the capabilities of a server with requests. Every capability has the observation that shows it."""

from __future__ import annotations

import math
import random
import re
import secrets
from collections.abc import Callable

import msgspec

from coldproof.adapters.common.redact import redacted
from coldproof.adapters.common.reset_route import RESET_PARAMETERS, RESET_PATH
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import RequestRefused, printable
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.requests import Completion, CompletionRequest, ResponseOptions
from coldproof.adapters.protocol.resets import SCOPE_CAPABILITIES
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.server.answers import UNREADABLE
from coldproof.adapters.server.client import HttpClient
from coldproof.adapters.server.completions import RANK_HEADER
from coldproof.adapters.server.metrics_page import Families
from coldproof.adapters.server.probe_endpoints import probe_endpoints
from coldproof.adapters.server.probe_options import attempt, probe_response_options, refusal
from coldproof.adapters.server.probe_pooling import probe_pooling
from coldproof.adapters.server.served_model import served_model, server_version
from coldproof.adapters.server.vllm_metrics import counts_first_lookups, has_salts
from coldproof.adapters.server.weights import probe_weights

FIRST_TOKEN, LAST_TOKEN = 32, 126
OPENAPI = "/openapi.json"  # the description of all routes, where a server has it
SIZE = re.compile(r"[0-9]{1,12}")  # of blocks, tokens or slots
CACHE_CONFIG = "cache."  # before the names of what vLLM's metrics report about its cache
PROBE_TOKENS = 512  # at least two blocks of any usual size (16 ... 256), so that the second request must hit
LARGEST_UNIT = 65536  # tokens; prompts are drawn around it
LONGEST_LABEL = 200  # characters of a label of the metrics that a report shows
NO_ADAPTER = "no adapter to try: give the folder of the served model with --model, or two adapters with --adapter"
NO_SWITCH = "each request names its adapter; no adapter can be switched on for all requests"
NO_EVENTS = "Coldproof reads KV events only from servers that it starts with KV events on: use the cell `events`"
NO_SIZES = "no route reports the sizes of images and rows: Coldproof sends them only to servers that it starts"
METRIC_FIELDS = {
    Capability.HIT_COUNTERS: "hit_tokens",
    Capability.PREEMPTION_COUNTS: "preemptions",
    Capability.DRAFT_COUNTS: "accepted_tokens",
    Capability.POOL_USAGE: "pool_usage",
}
CACHE_FIELDS = (
    "block_size",
    "num_gpu_blocks",
    "enable_prefix_caching",
    "prefix_caching_hash_algo",
    "cache_dtype",
    "prefix_cache_retention_interval",
    "sliding_window",
)


class ProbeResult(msgspec.Struct, frozen=True, kw_only=True):
    """The results of the probes. `null_is_miss`: the engine reports counts, and reports a miss as null."""

    version: str | None
    base_model: str
    shape: EngineShape
    capabilities: dict[Capability, Support]
    cache_config: dict[str, str]
    null_is_miss: bool


def probe(client: HttpClient, *, spawned: bool, adapter_path: str | None) -> ProbeResult:
    """Probe a server. `adapter_path`: an adapter that fits its model, to try loading.

    Raises EngineError if the server lists no model.
    """
    served = served_model(client)
    base_model, max_tokens = served.id, served.max_tokens
    families = client.scrape()
    ranks = count_ranks(families)
    cache_config = of_one_rank(first_labels(families, "vllm:cache_config"), ranks)
    found: dict[Capability, Support] = {
        **{capability: Support(False, evidence) for capability, evidence in OPTIONAL_ABSENT.items()},
        Capability.SPAWNABLE: Support(spawned, "started by Coldproof" if spawned else "attached by URL"),
        Capability.PROVENANCE: provenance_support(digests=False),
        Capability.SEVERAL_GROUPS: groups_support(cache_config, max_tokens),
        Capability.METRICS: metrics_support(families),
        Capability.BLOCK_SIZE: published_number(cache_config, "block_size"),
        Capability.POOL_SIZE: published_number(cache_config, "num_gpu_blocks"),
        Capability.KV_EVENTS: Support(None, NO_EVENTS),
        **dict.fromkeys((Capability.IMAGES, Capability.EMBEDDING_ROWS), Support(False, NO_SIZES)),
    }
    version = server_version(client)
    found[Capability.VERSION] = Support(version is not None, f"/version: {version}" if version else "no /version")
    salts = bool(cache_config) and has_salts(version)
    null_is_miss = probe_completions(client, base_model, max_tokens, salts, found)
    probe_response_options(client, base_model, found)
    found |= probe_endpoints(client, base_model, found)
    probe_adapters(client, adapter_path, found)
    found |= probe_pooling(client, base_model, is_vllm=bool(cache_config), found=found)
    found |= probe_weights(client)
    metrics = client.metrics()
    found[Capability.SECOND_TIER] = tier_support(metrics)
    found |= rank_support(ranks)
    found |= probe_reset_scopes(client, found)
    for capability, name in METRIC_FIELDS.items():
        there = getattr(metrics, name) is not None
        found[capability] = Support(there, f"the metrics {'have' if there else 'do not have'} {name}")
    slots = first_labels(client.scrape(), "vllm:lora_requests_info").get("max_lora")
    pool = integer_label(cache_config.get("num_gpu_blocks"))
    caching = cache_config.get("enable_prefix_caching")
    return ProbeResult(
        version=version,
        base_model=base_model,
        shape=EngineShape(
            block_size=hit_unit(cache_config),
            pool_blocks=pool - 1 if pool is not None and pool > 1 else None,  # without vLLM's null block
            max_model_tokens=max_tokens,
            limit_is_told=served.limit is not None,
            adapter_slots=integer_label(slots) or None,
            prefix_caching=None if caching is None else caching == "True",
            uniform=is_uniform(cache_config, max_tokens),
            kept_every=kept_every(cache_config),
            second_tier=found[Capability.SECOND_TIER].present is True,
            # Of a server that somebody else started, it is not known what its tier does with the pool's blocks.
            evicts_oldest=spawned or found[Capability.SECOND_TIER].present is not True,
            # Nor is it known what drafts: it may be heads such as EAGLE's.
            drops_block=not spawned and metrics.drafted_tokens is not None,
            ranks=ranks,
            counts_first_lookups=found[Capability.METRICS].present is True and counts_first_lookups(version),
        ),
        capabilities=found,
        cache_config={
            f"{CACHE_CONFIG}{key}": printable(redacted(cache_config[key]), LONGEST_LABEL)
            for key in CACHE_FIELDS
            if key in cache_config
        },
        null_is_miss=null_is_miss,
    )


def count_ranks(families: Families | None) -> int:
    """Return the number of data-parallel ranks: vLLM publishes the cache configuration of each, with its number."""
    samples = (families or {}).get("vllm:cache_config") or (families or {}).get("vllm:cache_config_info") or []
    return max(1, len({labels.get("engine") for labels, _ in samples}))


def of_one_rank(cache_config: dict[str, str], ranks: int) -> dict[str, str]:
    """Return the cache configuration of one rank: vLLM publishes the blocks of all ranks together, and all other
    numbers of one rank (0.32.0: `MPClient` sums `num_gpu_blocks` at the start).
    """
    blocks = integer_label(cache_config.get("num_gpu_blocks"))
    return cache_config if blocks is None else cache_config | {"num_gpu_blocks": str(blocks // ranks)}


def rank_support(ranks: int) -> dict[Capability, Support]:
    """Return what a server with so many data-parallel ranks can do."""
    if ranks == 1:
        return {}
    several = f"vllm:cache_config_info has {ranks} engines"
    return {
        Capability.SEVERAL_RANKS: Support(True, several),
        Capability.RANK_CHOICE: Support(True, f"{several}; the header {RANK_HEADER} names one of them"),
    }


def hit_unit(cache_config: dict[str, str]) -> int | None:
    """Return the granularity of hits, in tokens: a block, or several if groups of layers have different block sizes."""
    alignment, block = (integer_label(cache_config.get(key)) for key in ("cache_hit_alignment_tokens", "block_size"))
    unit = alignment or block or 0
    return unit if 0 < unit <= LARGEST_UNIT else None


def kept_every(cache_config: dict[str, str]) -> int | None:
    """Return the tokens between positions for which sparse layers keep blocks; None if it is not published. vLLM
    publishes None where they keep all blocks that may be hit.
    """
    interval = cache_config.get("prefix_cache_retention_interval")
    return hit_unit(cache_config) if interval == "None" else integer_label(interval)


def groups_support(cache_config: dict[str, str], longest: int) -> Support:
    """Return whether the layers have several KV-cache groups, by the pool's size in tokens."""
    if integer_label(cache_config.get("kv_cache_size_tokens")) is None:
        return Support(False, "the pool's size in tokens is not published")
    uniform = is_uniform(cache_config, longest)
    how = f"the pool's size in tokens {'is' if uniform else 'is not'} that of its blocks in one group"
    return Support(not uniform, how)


def is_uniform(cache_config: dict[str, str], longest: int) -> bool:
    """Return whether every layer keeps every block. `longest`: the maximum number of tokens of a request.

    vLLM publishes the pool's size in tokens as the requests of that length which fit, times that length. If every layer
    keeps every block, such a request takes as many blocks as it begins; with sliding windows or states, others.
    """
    tokens, blocks, size = (
        integer_label(cache_config.get(key)) for key in ("kv_cache_size_tokens", "num_gpu_blocks", "block_size")
    )
    if tokens is None or blocks is None or not size or tokens == blocks * size:
        return True
    return abs(tokens - blocks * longest / math.ceil(longest / size)) <= 1


def metrics_support(families: Families | None) -> Support:
    """Return whether the server publishes the counters that the checkers need."""
    if families is None:
        return Support(False, "no /metrics")
    present = bool(families.get("vllm:prefix_cache_queries"))
    return Support(present, f"/metrics {'has' if present else 'does not have'} vllm:prefix_cache_queries")


def tier_support(metrics: Metrics) -> Support:
    """Return whether any lookup in a second tier was counted. vLLM counts them only with a connector."""
    looked_up = metrics.external_queried_tokens
    if looked_up is None:
        return Support(None, "the metrics do not count lookups in a second tier")
    return Support(looked_up > 0, f"/metrics counts {looked_up:.0f} tokens looked up in a second tier")


def probe_completions(
    client: HttpClient, model: str, max_tokens: int, salts_known: bool, found: dict[Capability, Support]
) -> bool:
    """Send a few prompts and record the capabilities. Return whether the engine reports a miss as null.

    `salts_known`: whether the engine is known to have salts.
    """
    length = min(PROBE_TOKENS, max_tokens // 2)
    prompt = tuple(random.SystemRandom().choices(range(FIRST_TOKEN, LAST_TOKEN + 1), k=length))

    def send(salt: str | None = None, *, logprobs: bool = False) -> Completion:
        response_options = ResponseOptions(logprobs=logprobs)
        request = CompletionRequest(model=model, prompt=prompt, max_tokens=2, cache_salt=salt, options=response_options)
        return client.complete(request)

    try:
        first = send()  # a malformed answer here ends the probes: Coldproof cannot read this server's answers
    except RequestRefused as problem:
        found[Capability.TOKEN_PROMPTS] = refusal(problem)
        absent = Support(False, "token-id prompts are refused")
        found |= dict.fromkeys((Capability.TOKEN_OUTPUTS, Capability.STREAMING, Capability.LOGPROBS), absent)
        found |= dict.fromkeys((Capability.CACHED_TOKENS, Capability.CACHE_SALT, Capability.CACHE_RESET), absent)
        return False
    found[Capability.TOKEN_PROMPTS] = Support(True, "a list of token ids as prompt was accepted")
    count, how = len(first.tokens), "returned"
    if not count:  # vLLM before 0.10.2
        client.names_tokens = True
        count, how = len(send().tokens), "returned as names of tokens with logprobs"
        client.names_tokens = count > 0
    found[Capability.TOKEN_OUTPUTS] = Support(count > 0, f"{count} token ids {how} for max_tokens 2")
    found[Capability.STREAMING] = Support(count > 0, f"{count} tokens streamed")
    warm = send()
    counts = f"cached_tokens {first.cached_tokens} for the first request, {warm.cached_tokens} for the second"
    found[Capability.CACHED_TOKENS] = Support(warm.cached_tokens is not None, counts)
    scored = attempt(found, Capability.LOGPROBS, "", lambda: send(logprobs=True))
    if scored is not None:
        gaps = [t.gap for t in scored.tokens if t.gap is not None]
        found[Capability.LOGPROBS] = Support(bool(gaps), f"{len(gaps)} logprob margins returned")
    salted = attempt(found, Capability.CACHE_SALT, "", lambda: send(f"probe-{secrets.token_hex(8)}"))
    if salted is not None:
        # An engine that has salts and ignores one violates SALT-1. A server without salts ignores the field and does
        # not. So a vLLM that knows the field has salts even if this one has no effect.
        how = f"cached_tokens {warm.cached_tokens} without a salt, {salted.cached_tokens} with an unused salt"
        works = salts_known or (bool(warm.cached_tokens) and salts_act(send, null_is_miss=first.cached_tokens is None))
        found[Capability.CACHE_SALT] = Support(works, how)
    probe_reset(client, found, send)
    return first.cached_tokens is None and warm.cached_tokens is not None


def salts_act(send: Callable[[str], Completion], *, null_is_miss: bool) -> bool:
    """Return whether each of two salts misses at first and hits when it is sent again. One miss may have any reason,
    such as an eviction, or a replica of the server that has not seen the prompt.
    """
    for salt in (f"probe-{secrets.token_hex(8)}" for _ in range(2)):
        unused, again = send(salt).cached_tokens, send(salt).cached_tokens
        if unused or (unused is None and not null_is_miss) or not again:
            return False
    return True


def probe_reset(client: HttpClient, found: dict[Capability, Support], send: Callable[[], Completion]) -> None:
    """Probe the cache reset, and record whether the prompt still hits afterwards."""
    try:
        done, body = client.reset()
    except RequestRefused as problem:
        found[Capability.CACHE_RESET] = Support(False, f"{client.reset_path}: HTTP {problem.status}")
        return
    after = send().cached_tokens
    how = f"{client.reset_path} answered {body[:60].strip()}; cached_tokens {after} afterwards"
    found[Capability.CACHE_RESET] = Support(done, how)


def probe_reset_scopes(client: HttpClient, found: dict[Capability, Support]) -> dict[Capability, Support]:
    """Return what a reset can cover besides the prefix cache, by the parameters that the server documents.

    A server ignores a parameter that it does not know, and reports success all the same.
    """
    tier = found[Capability.SECOND_TIER]
    known = documented_parameters(client) if found[Capability.CACHE_RESET].present else []
    scopes = {SCOPE_CAPABILITIES[scope]: name for scope, name in RESET_PARAMETERS.items()}
    here = {
        capability: Support(name in known, f"{OPENAPI}: {RESET_PATH} has {', '.join(known) or 'no parameters'}")
        for capability, name in scopes.items()
    }
    if here[Capability.RESET_SECOND_TIER].present and tier.present is not True:
        here[Capability.RESET_SECOND_TIER] = tier  # nothing is there to be reset
    return here


def documented_parameters(client: HttpClient) -> list[str]:
    """Return the names of the parameters of the route for resets; none if the server describes no routes."""
    response = client.get(OPENAPI)
    try:
        page = msgspec.json.decode(response.content) if response.ok else {}
        return [printable(str(one["name"]), 40) for one in page["paths"][RESET_PATH]["post"]["parameters"]]
    except UNREADABLE:
        return []


def probe_adapters(client: HttpClient, path: str | None, found: dict[Capability, Support]) -> None:
    """Load an adapter under an unused name, replace it in place and unload it. `path`: None if there is no adapter."""
    probe_loading(client, path, found)
    named = found[Capability.RUNTIME_LORA]  # requests choose an adapter by the name under which it was loaded
    found |= {Capability.ADAPTER_CHOICE: named, Capability.MIXED_ADAPTERS: named}
    found[Capability.ADAPTER_SWITCH] = Support(False, NO_SWITCH)


def probe_loading(client: HttpClient, path: str | None, found: dict[Capability, Support]) -> None:
    """Record the capabilities of loading and of replacing."""
    if path is None:
        found |= dict.fromkeys((Capability.RUNTIME_LORA, Capability.LORA_IN_PLACE), Support(None, NO_ADAPTER))
        return
    name = f"coldproof-probe-{secrets.token_hex(4)}"
    attempt(found, Capability.RUNTIME_LORA, "loaded an adapter", lambda: client.load_adapter(name, path))
    if not found[Capability.RUNTIME_LORA].present:
        found[Capability.LORA_IN_PLACE] = found[Capability.RUNTIME_LORA]
        return
    how = "replaced an adapter with load_inplace"
    attempt(found, Capability.LORA_IN_PLACE, how, lambda: client.load_adapter(name, path, in_place=True))
    attempt(found, Capability.RUNTIME_LORA, "loaded and unloaded an adapter", lambda: client.unload_adapter(name))


def published_number(cache_config: dict[str, str], key: str) -> Support:
    """Return whether the cache configuration in the metrics has a number."""
    value = integer_label(cache_config.get(key))
    if value is None:
        return Support(None, f"the metrics do not report {key}")
    return Support(True, f"vllm:cache_config_info has {key}={value}")


def first_labels(families: Families | None, name: str) -> dict[str, str]:
    """Return the labels of a family's first sample. The parser strips `_info` from the names of info families."""
    for key in (name, f"{name}_info", name.removesuffix("_info")):
        samples = (families or {}).get(key)
        if samples:
            return samples[0][0]
    return {}


def integer_label(text: str | None) -> int | None:
    """Return the integer of a label, or None if it is missing or no number that a size can have."""
    return int(text) if text is not None and SIZE.fullmatch(text) else None


def provenance_support(*, digests: bool) -> Support:
    """Return whether the engine reports whose KV a request read. Only the fingerprint worker's digests show it."""
    how = "the digests of the fingerprint worker name their writer" if digests else "KV does not identify its writer"
    return Support(digests, how)
