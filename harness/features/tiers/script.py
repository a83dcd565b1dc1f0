"""Scripts of cases about a second tier."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import Told, flag


@flag("TIERED")
def has_tier(told: Told) -> bool:
    """Return whether there is a second tier, which may find what a new salt does not."""
    return "--kv-transfer-config" in told.command


@flag("LMCACHE")
def has_lmcache(told: Told) -> bool:
    """Return whether it is LMCache's."""
    return "LMCache" in told.command
