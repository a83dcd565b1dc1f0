"""Finds out what an SGLang server can do: what it says of itself, and what comes of trying."""

from __future__ import annotations

from typing import Any

import msgspec

from adapters.base import Capability, EngineError, EngineShape, Support
from adapters.probe_surface import probe_surface
from adapters.probes import NO_EVENTS, Probed, probe_adapters, probe_completions, provenance_support, served_model
from adapters.rare import NOT_OFFERED
from adapters.redact import KEY_VARIABLE, redacted
from adapters.sglang_wire import HITS, NO_CHAT, NO_SEED, OTHER_LAYERS, QUERIES, SglangWire

SALT_FIELDS = ("cache_salt", "extra_key")  # the newer first
ROOM_FOR_ANSWER = 6  # tokens that SGLang keeps free behind a prompt, where it does not say how long one may be
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
)  # of what it says of itself, in a report
STATIC = {
    Capability.ADAPTER_SWITCH: Support(False, "a request names its adapter; there is none for all of them"),
    Capability.CHAT: Support(False, NO_CHAT),
    Capability.SEVERAL_ANSWERS: Support(False, NO_SEED),
    Capability.KV_EVENTS: Support(None, NO_EVENTS),
    Capability.SPAWNABLE: Support(False, "attached by URL"),
    Capability.PROVENANCE: provenance_support(digests=False),
}


class Facts(msgspec.Struct, frozen=True):
    """What the server says: /model_info and /server_info."""

    model: dict[str, Any]
    server: dict[str, Any]

    @property
    def root(self) -> str:
        """Where it read its model from."""
        return str(self.model["model_path"])

    @property
    def name(self) -> str:
        """The base model's, as requests to it are called here; on the wire they name nothing."""
        return str(self.model.get("served_model_name") or self.root)

    def number(self, key: str) -> int | None:
        """A number of /server_info; None where it does not say."""
        value = self.server.get(key)
        return value if type(value) is int else None

    def flag(self, key: str) -> bool | None:
        """A switch of /server_info; None where it does not say. One that was never touched is null there."""
        return bool(self.server[key]) if key in self.server else None


def read_facts(wire: SglangWire) -> Facts:
    """Ask the server who it is. Raises EngineError where it is not SGLang."""
    model = first_object(wire, "/model_info", "/get_model_info")
    if "model_path" not in model:
        raise EngineError(
            f"{wire.printable_url} does not answer /model_info as SGLang does: attach another OpenAI-compatible server "
            "with --engine endpoint"
        )
    if model.get("is_generation") is False:
        raise EngineError(f"{wire.printable_url} serves {model['model_path']}, which generates no tokens")
    return Facts(model, first_object(wire, "/server_info", "/get_server_info"))


def first_object(wire: SglangWire, *paths: str) -> dict[str, Any]:
    """The first of these pages that is a JSON object: its newer name, then its older; empty where none is."""
    for path in paths:
        response = wire.get(path)
        if response.status_code == 401:
            raise EngineError(f"the server wants an API key: set {KEY_VARIABLE} to the right one")
        try:
            page = response.json() if response.status_code == 200 else None
        except ValueError:
            continue
        if isinstance(page, dict):
            return page
    return {}


def probe(wire: SglangWire, facts: Facts, adapter_path: str | None) -> Probed:
    """Try everything once. `adapter_path`: an adapter that fits the model, to try loading."""
    longest = facts.number("max_req_input_len") or served_model(wire).max_tokens - ROOM_FOR_ANSWER
    version = facts.server.get("version")
    found: dict[Capability, Support] = {
        **{capability: Support(False, evidence) for capability, evidence in NOT_OFFERED.items()},
        Capability.VERSION: Support(version is not None, f"/server_info says {version}"),
    }
    probe_salted(wire, longest, found)
    probe_surface(wire, wire.base_model, found)
    probe_adapters(wire, adapter_path, found)
    ranked = facts.flag("enable_priority_scheduling")
    found[Capability.PRIORITY] = Support(ranked, f"/server_info says enable_priority_scheduling {ranked}")
    found |= sizes(facts)
    tiers = facts.flag("enable_hierarchical_cache")
    found[Capability.SECOND_TIER] = Support(tiers, f"/server_info says enable_hierarchical_cache {tiers}")
    found |= seen_in_metrics(wire)
    radix_off = facts.flag("disable_radix_cache")
    return Probed(
        version=None if version is None else str(version),
        base_model=wire.base_model,
        shape=EngineShape(
            block_size=facts.number("page_size"),
            pool_blocks=pages(facts),
            max_model_tokens=longest,
            adapter_slots=facts.number("max_loras_per_batch") if facts.flag("enable_lora") else None,
            prefix_caching=None if radix_off is None else not radix_off,
            uniform=found[Capability.SEVERAL_GROUPS].present is False,
            most_requests=wire.most_requests(),
            second_tier=tiers is True,
        ),
        capabilities=found | STATIC,
        cache_config={key: redacted(str(facts.server[key])) for key in PRINTED if facts.server.get(key) is not None},
        null_is_miss=False,
    )


def probe_salted(wire: SglangWire, longest: int, found: dict[Capability, Support]) -> None:
    """Ask a few prompts, and again with an older name of the salt where the newer one keeps nothing apart."""
    for field in SALT_FIELDS:
        wire.salt_field = field
        probe_completions(wire, wire.base_model, longest, False, found)
        support = found[Capability.CACHE_SALT]
        found[Capability.CACHE_SALT] = msgspec.structs.replace(support, evidence=f"{field}: {support.evidence}")
        if support.present:
            return


def sizes(facts: Facts) -> dict[Capability, Support]:
    """Page and pool, as the server tells them."""
    page, pool, replicas = facts.number("page_size"), facts.number("max_total_num_tokens"), facts.number("dp_size")
    words = f"/server_info says max_total_num_tokens {pool}"
    if (replicas or 1) > 1:
        words = f"{replicas} replicas have a cache each, and nothing says which one a request goes to"
    return {
        Capability.BLOCK_SIZE: Support(page is not None, f"/server_info says page_size {page}"),
        Capability.POOL_SIZE: Support(pages(facts) is not None, words),
    }


def pages(facts: Facts) -> int | None:
    """The pool in pages; None where nobody says, or several replicas have one each."""
    page, pool = facts.number("page_size"), facts.number("max_total_num_tokens")
    alone = (facts.number("dp_size") or 1) == 1
    return pool // page if page and pool is not None and alone else None


def seen_in_metrics(wire: SglangWire) -> dict[Capability, Support]:
    """Whether hits are counted, and whether any layers keep their tokens apart. Asked when there has been a hit: a
    counter is not published before it has counted."""
    families, told = wire.scrape() or {}, wire.metrics()
    uncounted = [name for name in (QUERIES, HITS) if not families.get(name)]
    lacking = uncounted if told.running is not None else [*uncounted, "/v1/loads"]
    gauge, retracted = told.pool_usage, told.preemptions
    words = f"without {' and '.join(lacking)} (--enable-metrics)" if lacking else "/metrics and /v1/loads"
    counted = f"without {' and '.join(uncounted)} (--enable-metrics)" if uncounted else f"/metrics has {HITS}"
    apart = [name for name in OTHER_LAYERS if sum(value for _, value in families.get(name, ()))]
    groups = f"/metrics says {apart[0]} is not 0" if apart else "/metrics counts no tokens of windows or states"
    return {
        Capability.METRICS: Support(not lacking, words),
        Capability.HIT_COUNTERS: Support(not uncounted, counted),
        Capability.POOL_USAGE: Support(gauge is not None, f"/v1/loads tells {gauge} of the pool in use"),
        Capability.PREEMPTION_COUNTS: Support(retracted is not None, f"/metrics tells {retracted} retracted requests"),
        Capability.SEVERAL_GROUPS: Support(bool(apart), groups)
        if families
        else Support(None, "no /metrics (--enable-metrics)"),
    }
