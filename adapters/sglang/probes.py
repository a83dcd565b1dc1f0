"""Find out the capabilities of an SGLang server: from what it reports, and with probe requests."""

from __future__ import annotations

import secrets
from typing import Any

import msgspec
import requests

from coldproof.adapters.common.redact import KEY_VARIABLE, redacted
from coldproof.adapters.protocol.capabilities import OPTIONAL_ABSENT, Capability, Support
from coldproof.adapters.protocol.engine import EngineError, MalformedAnswer, RequestRefused
from coldproof.adapters.protocol.requests import CompletionRequest
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.server.answers import UNREADABLE, malformed
from coldproof.adapters.server.openapi import listed_routes
from coldproof.adapters.server.probe_options import probe_response_options
from coldproof.adapters.server.probes import (
    NO_EVENTS,
    NO_SWITCH,
    ProbeResult,
    probe_adapters,
    probe_completions,
    provenance_support,
)
from coldproof.adapters.server.served_model import served_model
from coldproof.adapters.sglang.client import HITS, OTHER_LAYERS, QUERIES, SglangClient
from coldproof.adapters.sglang.endpoints import NO_SAMPLING_SEED, probe_endpoints
from coldproof.adapters.sglang.sessions import CLOSE, OPEN
from coldproof.adapters.sglang.weights import probe_weights

NOT_SGLANG = "SGLang's model_path: for another OpenAI-compatible server use --engine endpoint"
NO_IMAGES = "the adapter sends no images: SGLang 0.5.23 loads no generated LLaVA on a CPU without torchvision"
SALT_FIELDS = ("cache_salt", "extra_key")  # the newer name first
ROOM_FOR_ANSWER = 6  # tokens that SGLang reserves after a prompt; needed if it does not report the longest prompt
FIRST, MORE = tuple(range(40, 60)), tuple(range(60, 70))  # the new tokens of two turns of a session
PRINTED = (
    "launch_command",
    "page_size",
    "max_total_num_tokens",
    "dtype",
    "attention_backend",
    "schedule_policy",
    "radix_eviction_policy",
    "chunked_prefill_size",
    "lora_backend",
)  # the fields of /server_info that a report shows
LARGEST_SIZE = 10**12  # of blocks, tokens or slots
STATIC = {
    Capability.ADAPTER_SWITCH: Support(False, NO_SWITCH),
    Capability.SEVERAL_ANSWERS: Support(False, NO_SAMPLING_SEED),
    Capability.KV_EVENTS: Support(None, NO_EVENTS),
    Capability.IMAGES: Support(False, NO_IMAGES),
    Capability.SPAWNABLE: Support(False, "attached by URL"),
    Capability.PROVENANCE: provenance_support(digests=False),
}


class ServerFacts(msgspec.Struct, frozen=True):
    """The contents of /model_info and /server_info."""

    model: dict[str, Any]
    server: dict[str, Any]

    @property
    def root(self) -> str:
        """Return the path from which the server read its model."""
        return str(self.model["model_path"])

    @property
    def name(self) -> str:
        """Return the base model's name in Coldproof. Requests to the base model have no model field."""
        return str(self.model.get("served_model_name") or self.root)

    def number(self, key: str) -> int | None:
        """Return a number of /server_info, or None if it is missing."""
        value = self.server.get(key)
        return value if type(value) is int and 0 <= value < LARGEST_SIZE else None

    def flag(self, key: str) -> bool | None:
        """Return a flag of /server_info, or None if it is missing. A flag that was not set is null and means False."""
        return bool(self.server[key]) if key in self.server else None


def read_facts(client: SglangClient) -> ServerFacts:
    """Read /model_info and /server_info. Raises EngineError if the server is not an SGLang server that generates."""
    model, answer = first_object(client, "/model_info", "/get_model_info")
    if "model_path" not in model:
        raise malformed(answer, answer.text, NOT_SGLANG)
    if model.get("is_generation") is False:
        raise EngineError(f"{client.printable_url} serves {model['model_path']}, which is not a generative model")
    return ServerFacts(model, first_object(client, "/server_info", "/get_server_info")[0])


def first_object(client: SglangClient, *paths: str) -> tuple[dict[str, Any], requests.Response]:
    """Return the first of these pages that is a JSON object (empty if none is), and the latest answer."""
    for path in paths:
        response = client.get(path)
        if response.status_code == 401:
            raise EngineError(f"the server requires a valid API key: set {KEY_VARIABLE}")
        try:
            page = msgspec.json.decode(response.content) if response.status_code == 200 else None
        except UNREADABLE:
            continue
        if isinstance(page, dict):
            return page, response
    return {}, response


def probe(client: SglangClient, facts: ServerFacts, adapter_path: str | None) -> ProbeResult:
    """Probe a server. `adapter_path`: an adapter that fits its model, to try loading."""
    longest = facts.number("max_req_input_len") or served_model(client).max_tokens - ROOM_FOR_ANSWER
    version = facts.server.get("version")
    found: dict[Capability, Support] = {
        **{capability: Support(False, evidence) for capability, evidence in OPTIONAL_ABSENT.items()},
        Capability.VERSION: Support(version is not None, f"/server_info: version {version}"),
    }
    client.counts_at_endpoints = facts.flag("enable_cache_report") is True
    probe_salted(client, longest, found)
    probe_response_options(client, client.base_model, found)
    found |= probe_endpoints(client, client.base_model, found)
    probe_adapters(client, adapter_path, found)
    ranked = facts.flag("enable_priority_scheduling")
    found[Capability.PRIORITY] = Support(ranked, f"/server_info: enable_priority_scheduling {ranked}")
    found |= size_capabilities(facts)
    tiers = facts.flag("enable_hierarchical_cache")
    found[Capability.SECOND_TIER] = Support(tiers, f"/server_info: enable_hierarchical_cache {tiers}")
    found |= metric_capabilities(client)
    found |= probe_weights(client)
    found[Capability.SESSIONS] = session_support(client, streaming=False)
    streams = facts.flag("enable_streaming_session")
    off = Support(False, f"/server_info: enable_streaming_session {streams}")
    found[Capability.STREAMING_SESSIONS] = session_support(client, streaming=True) if streams else off
    radix_off = facts.flag("disable_radix_cache")
    return ProbeResult(
        version=None if version is None else str(version),
        base_model=client.base_model,
        shape=EngineShape(
            block_size=facts.number("page_size"),
            pool_blocks=pages(facts),
            max_model_tokens=longest,
            adapter_slots=facts.number("max_loras_per_batch") if facts.flag("enable_lora") else None,
            prefix_caching=None if radix_off is None else not radix_off,
            uniform=found[Capability.SEVERAL_GROUPS].present is False,
            most_requests=client.most_requests(),
            second_tier=tiers is True,
            evicts_leaves=True,  # 0.5.23: RadixCache.evict
        ),
        capabilities=found | STATIC,
        cache_config={key: redacted(str(facts.server[key])) for key in PRINTED if facts.server.get(key) is not None},
        null_is_miss=False,
    )


def probe_salted(client: SglangClient, longest: int, found: dict[Capability, Support]) -> None:
    """Probe completions. If the newer name of the salt has no effect, probe them again with the older name."""
    for field in SALT_FIELDS:
        client.salt_field = field
        probe_completions(client, client.base_model, longest, False, found)
        support = found[Capability.CACHE_SALT]
        found[Capability.CACHE_SALT] = msgspec.structs.replace(support, evidence=f"{field}: {support.evidence}")
        if support.present:
            return


def session_support(client: SglangClient, *, streaming: bool) -> Support:
    """Return whether a second turn is answered as its whole prompt without a session. It keeps the last token of the
    answer before it in a streaming session only.
    """
    if not listed_routes(client).issuperset((OPEN, CLOSE)):
        return Support(False, f"the server does not list {OPEN} and {CLOSE} in /openapi.json")
    name = f"probe-{secrets.token_hex(4)}"
    first = CompletionRequest(model=client.base_model, prompt=FIRST, max_tokens=4, session=name, streaming=streaming)
    try:
        said = tuple(token.id for token in client.complete(first).tokens)
        held = FIRST + (said if streaming else said[:-1])
        alone = CompletionRequest(model=client.base_model, prompt=held + MORE, max_tokens=4)
        turn = msgspec.structs.replace(alone, session=name, held=len(held), streaming=streaming)
        answers = [[token.id for token in client.complete(request).tokens] for request in (turn, alone)]
        client.sessions.end(client, name)
    except (RequestRefused, MalformedAnswer) as problem:
        return Support(False, f"{OPEN}: {problem}")
    same = answers[0] == answers[1]
    how = "the same answer as" if same else "another answer than"
    kind = "streaming turn" if streaming else "turn with an offset"
    return Support(same, f"{OPEN}: a {kind} gets {how} its whole prompt without a session")


def size_capabilities(facts: ServerFacts) -> dict[Capability, Support]:
    """Return whether the server reports its page size and its pool size."""
    page, pool, replicas = facts.number("page_size"), facts.number("max_total_num_tokens"), facts.number("dp_size")
    how = f"/server_info: max_total_num_tokens {pool}"
    if (replicas or 1) > 1:
        how = f"{replicas} replicas have one cache each, and the server does not report the replica of a request"
    return {
        Capability.BLOCK_SIZE: Support(page is not None, f"/server_info: page_size {page}"),
        Capability.POOL_SIZE: Support(pages(facts) is not None, how),
    }


def pages(facts: ServerFacts) -> int | None:
    """Return the pool's size in pages. None if it is not reported, or if several replicas have one pool each."""
    page, pool = facts.number("page_size"), facts.number("max_total_num_tokens")
    single = (facts.number("dp_size") or 1) == 1
    return pool // page if page and pool is not None and single else None


def metric_capabilities(client: SglangClient) -> dict[Capability, Support]:
    """Return the capabilities that follow from /metrics and /v1/loads.

    Call it after the first hit, because a counter is not published before its first increment.
    """
    families, metrics = client.scrape() or {}, client.metrics()
    uncounted = [name for name in (QUERIES, HITS) if not families.get(name)]
    missing = uncounted if metrics.running is not None else [*uncounted, "/v1/loads"]
    usage, retracted = metrics.pool_usage, metrics.preemptions
    sources = f"no {' and no '.join(missing)} (--enable-metrics)" if missing else "/metrics and /v1/loads"
    counters = f"no {' and no '.join(uncounted)} (--enable-metrics)" if uncounted else f"/metrics has {HITS}"
    others = [name for name in OTHER_LAYERS if sum(value for _, value in families.get(name, ()))]
    groups = f"/metrics: {others[0]} is not 0" if others else "/metrics counts no tokens of windows or states"
    return {
        Capability.METRICS: Support(not missing, sources),
        Capability.HIT_COUNTERS: Support(not uncounted, counters),
        Capability.POOL_USAGE: Support(usage is not None, f"/v1/loads: pool usage {usage}"),
        Capability.PREEMPTION_COUNTS: Support(retracted is not None, f"/metrics: {retracted} retracted requests"),
        Capability.SEVERAL_GROUPS: Support(bool(others), groups)
        if families
        else Support(None, "no /metrics (--enable-metrics)"),
    }
