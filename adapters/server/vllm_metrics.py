"""The names of the metrics of vLLM's server, and how a version counts cache lookups."""

from __future__ import annotations

from collections.abc import Iterable
from urllib.parse import urlencode

from packaging.version import InvalidVersion, Version

METRICS_PATH = "/metrics"

FAILED_LOADS_COUNTER = "vllm:coldproof_failed_loads"  # vLLM unregisters only metrics with this prefix

COUNTERS = {
    "vllm:prefix_cache_queries": "queried_tokens",
    "vllm:prefix_cache_hits": "hit_tokens",
    "vllm:external_prefix_cache_queries": "external_queried_tokens",
    "vllm:external_prefix_cache_hits": "external_hit_tokens",
    FAILED_LOADS_COUNTER: "failed_loads",
    "vllm:num_preemptions": "preemptions",
    "vllm:spec_decode_num_draft_tokens": "drafted_tokens",
    "vllm:spec_decode_num_accepted_tokens": "accepted_tokens",
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "pool_usage",
}

QUEUE = ("vllm:num_requests_running", "vllm:num_requests_waiting")


def path_of(names: Iterable[str]) -> str:
    """Return the path of the metrics with these names.

    The Prometheus client's own handler returns only them, in a fifth of the time that vLLM needs for all. The slash
    selects that handler: vLLM's handler at /metrics ignores the names and returns all metrics.
    """
    return f"{METRICS_PATH}/?" + urlencode([("name[]", name) for name in names])


GAUGES_PATH = path_of(QUEUE)
COUNTERS_PATH = path_of(name + end for name in COUNTERS for end in ("", "_total"))

COUNTS_FIRST_LOOKUPS = Version("0.32.dev0")  # the first version that does
HAS_SALTS = Version("0.9.dev0")


def has_salts(vllm_version: str | None) -> bool:
    """Return whether a release of vLLM has the field `cache_salt` (PR#17045, 0.9.0). Older ones ignore it, so that an
    unused salt does not bypass their cache. An unknown version is taken for a newer one.
    """
    return is_since(HAS_SALTS, vllm_version, unknown=True)


def counts_first_lookups(vllm_version: str | None) -> bool:
    """Return whether a request is counted once, with its whole prompt, at admission.

    vLLM counts lookups after a preemption separately (PrefixCacheStats.record). Older versions and other engines may
    count each scheduling attempt, or the hits after a preemption.
    """
    return is_since(COUNTS_FIRST_LOOKUPS, vllm_version, unknown=False)


def is_since(first: Version, version: str | None, *, unknown: bool) -> bool:
    """Return whether a version is `first` or a newer one; `unknown` if there is none, or it cannot be read."""
    try:
        return unknown if version is None else Version(version) >= first
    except InvalidVersion:
        return unknown
