"""Scripts of cases about resets of more than the prefix cache."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag
from coldproof.harness.workload.steps import Reset


@flag("SCOPES")
def has_scopes(about: ScriptCase) -> bool:
    """Return whether a reset names caches beside the prefix cache, or leaves that one as it is."""
    return any(isinstance(one, Reset) and bool(one.scope or not one.prefix) for one in about.changes)
