"""Cells with published KV events."""

from __future__ import annotations

from coldproof.adapters.vllm.cells.cell import SMALL_CHUNKS, VllmCell, small_pool

EVENT_CELLS = (
    VllmCell(
        name="events",
        about="KV events are published, a pool that never evicts",
        areas=("EVENT-1", "EVENT-3", "EVENT-5"),
        events=True,
    ),
    VllmCell(
        name="events-tight",
        about="KV events are published, a pool of 16 blocks, prefill in chunks of at most 64 tokens",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=("EVENT-2", "EVENT-3"),
        events=True,
    ),
    VllmCell(
        name="events-window",
        about="KV events are published, a sliding window of 64 tokens beside full attention",
        areas=("EVENT-4",),
        topology="window",
        events=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="events-offload",
        about="KV events are published, also by vLLM's OffloadingConnector behind a pool of 16 blocks",
        arguments=small_pool(*SMALL_CHUNKS),
        areas=("EVENT-1", "EVENT-2", "EVENT-3"),
        tier="offload-described",
        events=True,
        only_fingerprint=True,
    ),
)
