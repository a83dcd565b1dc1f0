"""Refuse a request that would not fit into the cache if it were alone.

Its length is known when it arrives. The cache stores all of its tokens but the last one of the answer.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==5.23.0"


def install() -> None:
    """Plant the repair."""
    manager = part("transformers.generation.continuous_batching.continuous_api", "ContinuousBatchingManager")

    @wrap(manager, "add_request", "denial_msg = self.background_thread_status.can_accept_new_requests()")
    def _(original: Any, self: Any, input_ids: list[int], *arguments: Any, **options: Any) -> Any:
        answer = options.get("max_new_tokens") or self.generation_config.max_new_tokens or 1
        cache = getattr(getattr(self, "batch_processor", None), "cache", None)
        sizes = [one.tokens_per_page * one.num_blocks for one in cache.cache_allocators.values()] if cache else []
        most = max(sizes, default=0)
        if most and len(input_ids) + answer - 1 > most:
            raise ValueError(f"the request needs more than the {most} tokens of the cache")
        return original(self, input_ids, *arguments, **options)
