"""Reset the scheduler's part of the encoder cache together with the worker's.

A reload of the weights empties the latter, so that nothing that the former has is there any more.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""

    @wrap(part("vllm.v1.engine.core", "EngineCore"), "collective_rpc", "self.model_executor.collective_rpc(")
    def _(original: Any, self: Any, method: Any, *arguments: Any, **options: Any) -> Any:
        done = original(self, method, *arguments, **options)
        if method == "reload_weights":
            self.scheduler.reset_encoder_cache()
        return done
