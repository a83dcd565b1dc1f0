"""End chunks of prefill at the blocks of the layers with states, not at the smallest blocks of all layers.

`EngineCore` sets `cache_config.block_size` to the smallest block of any group. A state is stored where a chunk ends.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    import copy

    scheduler = part("vllm.v1.core.sched.scheduler", "Scheduler")
    states = part("vllm.v1.kv_cache_interface", "MambaSpec")

    @wrap(scheduler, "_mamba_block_aligned_split", "block_size = self.cache_config.block_size")
    def _(original: Any, self: Any, *arguments: Any, **options: Any) -> Any:
        shared = self.cache_config
        specs = (group.kv_cache_spec for group in self.kv_cache_config.kv_cache_groups)
        self.cache_config = copy.copy(shared)
        self.cache_config.block_size = next(spec.block_size for spec in specs if isinstance(spec, states))
        try:
            return original(self, *arguments, **options)
        finally:
            self.cache_config = shared
