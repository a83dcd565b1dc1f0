"""How an engine version counts cache lookups."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

FIRST = Version("0.32.dev0")


def counts_first_lookups(vllm_version: str | None) -> bool:
    """Return whether a request is counted once, with its whole prompt, at admission.

    vLLM counts lookups after a preemption separately (PrefixCacheStats.record). Older versions and other engines may
    count each scheduling attempt, or the hits after a preemption.
    """
    try:
        return vllm_version is not None and Version(vllm_version) >= FIRST
    except InvalidVersion:
        return False
