"""Scripts of cases about pooled answers."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag


@flag("POOLED", compared=True)
def has_pooled(about: ScriptCase) -> bool:
    """Return whether some answers are vectors."""
    return any(request.options.pooled for request in about.requests)
