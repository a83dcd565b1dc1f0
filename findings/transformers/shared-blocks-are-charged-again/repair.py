"""Let a batch read as many tokens as its requests have, however few blocks they share.

The tensor that lists what a batch reads is as long as the pool. It has an entry for each token of each request, so that
requests which share a block need several entries for it.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==5.23.0"
MOST = 16384  # tokens; the attention mask has this width, so that a large pool keeps its own size


def install() -> None:
    """Plant the repair."""
    edit(
        part("transformers.generation.continuous_batching.cache", "PagedAttentionCache"),
        "__init__",
        (
            "self.max_tokens_read = max(ca.tokens_per_page * ca.num_blocks for ca in self.cache_allocators.values())",
            "pool = max(ca.tokens_per_page * ca.num_blocks for ca in self.cache_allocators.values()); "
            "requests = continuous_batching_config.max_requests_per_batch; "
            f"self.max_tokens_read = max(pool, min(pool * requests, {MOST}))",
        ),
    )
