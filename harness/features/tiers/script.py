"""Scripts of cases about a second tier."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag


@flag("TIERED")
def has_tier(about: ScriptCase) -> bool:
    """Return whether there is a second tier, which may find what a new salt does not."""
    return "--kv-transfer-config" in about.command


@flag("LMCACHE")
def has_lmcache(about: ScriptCase) -> bool:
    """Return whether it is LMCache's."""
    return "LMCache" in about.command
