"""Scripts of cases about engines on several ranks."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag


@flag("HEADERS")
def chooses_ranks(about: ScriptCase) -> bool:
    """Return whether some requests choose their rank, with a header."""
    return any(request.rank is not None for request in about.requests)
