"""Admit a request alone if its tokens, in whole pages, fit into the pool, and let its answer fill them.

The page that is reserved beside them is for the rounding of several requests. Where no other request is admitted or
runs, the request's own pages are all that it takes. Pools with sliding windows have other budgets, which stay.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.5.23"


def install() -> None:
    """Plant the repair."""
    edit(
        part("sglang.srt.mem_cache.prefill_budget", "PrefillBudget"),
        "check_prefill",
        (
            "if total_tokens < self.remaining_total",
            "if total_tokens < self.remaining_total\n"
            "        or self.total_offset == 0\n"
            "        and self.ceil_paged_tokens(total_tokens - self.page_size) <= self.remaining_total",
        ),
    )
    edit(
        part("sglang.srt.mem_cache.allocator.base", "BaseTokenToKVPoolAllocator"),
        "max_new_tokens_for_memory",
        (
            "token_capacity - paged_input - self.page_size - 1",
            "token_capacity // self.page_size * self.page_size - input_tokens",
        ),
    )
