"""What is known of how an engine counts its look-ups, by its version."""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

FIRST = Version("0.32.dev0")


def counts_first_lookups(vllm_version: str | None) -> bool:
    """Whether a request is counted once, with all of its prompt, as it is let in.

    vLLM counts what a request looks up after a preemption apart (PrefixCacheStats.record). Older ones and others may
    count each try, or what is found again.
    """
    try:
        return vllm_version is not None and Version(vllm_version) >= FIRST
    except InvalidVersion:
        return False
