"""Cells with published KV events."""

from __future__ import annotations

from coldproof.adapters.vllm.cells.cell import SMALL_CHUNKS, VllmCell, small_pool

EVENT_CELLS = (
    VllmCell(
        name="events",
        about="KV events are published, a pool that never evicts",
        traits=("KV events", "another implementation"),
        twin="events-cbor",
        events=True,
    ),
    VllmCell(
        name="events-cbor",
        about="KV events are published, with block hashes over CBOR: the twin of events",
        arguments=("--prefix-caching-hash-algo", "sha256_cbor"),
        traits=("KV events",),
        events=True,
        on_request=True,
    ),
    VllmCell(
        name="events-tight",
        about="KV events are published, a pool of 16 blocks, prefill in chunks of at most 64 tokens",
        arguments=small_pool(*SMALL_CHUNKS),
        traits=("KV events in a small pool",),
        events=True,
    ),
    VllmCell(
        name="events-window",
        about="KV events are published, a sliding window of 64 tokens beside full attention",
        traits=("KV events of groups",),
        topology="window",
        events=True,
        only_fingerprint=True,
    ),
    VllmCell(
        name="events-offload",
        about="KV events are published, also by vLLM's OffloadingConnector behind a pool of 16 blocks",
        arguments=small_pool(*SMALL_CHUNKS),
        traits=("KV events of a tier", "KV events in a small pool"),
        tier="offload-described",
        events=True,
        only_fingerprint=True,
    ),
)
