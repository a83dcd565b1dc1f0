"""Scripts of cases with limits on loads and stores."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag


@flag("LIMITED")
def has_limits(about: ScriptCase) -> bool:
    """Return whether some requests have a limit."""
    return any(request.options != request.options.of_the_answer for request in about.requests)
