"""Scripts of cases about response options."""

from __future__ import annotations

from coldproof.harness.case.reproducer.registry import ScriptCase, flag


@flag("WHOLE")
def has_whole(about: ScriptCase) -> bool:
    """Return whether some answers cannot be streamed."""
    return any(request.options.prompt_logprobs for request in about.requests)


@flag("SEVERAL", compared=True)
def has_several(about: ScriptCase) -> bool:
    """Return whether some requests want several answers."""
    return any(request.options.answers > 1 for request in about.requests)


@flag("SCORES", compared=True)
def has_scores(about: ScriptCase) -> bool:
    """Return whether logprobs are compared."""
    return any(request.options.prompt_logprobs or request.options.logprobs for request in about.requests)


@flag("ENDS", compared=True)
def has_ends(about: ScriptCase) -> bool:
    """Return whether the reason why an answer ended is compared."""
    return any(request.options.stop or request.options.pattern for request in about.requests)
