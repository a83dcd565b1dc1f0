"""An engine whose model scores a text without the engine's scheduler and cache. Only a cold oracle may use it.

Such scores say what the model prefers. They say nothing about what the engine serves, so that no requirement about
prompt logprobs is tested with them.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from coldproof.adapters.protocol.requests import Completion, CompletionRequest


@runtime_checkable
class ScoresDirectly(Protocol):
    """An engine with the capability DIRECT_SCORES."""

    def score(self, request: CompletionRequest) -> Completion:
        """Return `prompt_logprobs` and `prompt_best` of a prompt, and the next token, in one forward pass.

        Raises RequestRefused for an unknown model and while requests run, and EngineDied.
        """
