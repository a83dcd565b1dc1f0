"""vLLM's SimpleCPUOffloadConnector without a GPU: only streams, events and copies are replaced.

Its worker creates CUDA streams and copies with cuMemcpyBatchAsync in a separate thread. Both are replaced by name in
the worker's module, which does not work without CUDA. The scheduler's side is unmodified. A connector class of our own
would not work, because MultiConnector finds its parts by name.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import torch
from vllm.v1.simple_kv_offload import worker as vllm_worker

from coldproof.adapters.vllm.fingerprint.connectors.deferred_copies import DeferredCopies, polls_of

Caches = dict[str, torch.Tensor]


def use_host_memory() -> None:
    """Patch vLLM's module so that the connector's workers in this process copy between host tensors."""
    vllm_worker.torch = HostTorch()
    vllm_worker.DmaCopyBackend = DeferredCopyBackend


class HostStream:
    """Replaces a CUDA stream. Nothing must be ordered, because the host writes before it submits a copy."""

    def __init__(self, **_: Any) -> None:
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """Return the lowest and the highest priority."""
        return 0, 0


class HostEvent:
    """Replaces a CUDA event. Work before a copy's submission is already complete, so there is nothing to record."""

    def record(self, stream: HostStream) -> None:
        """Do nothing."""


class HostTorch:
    """The module `torch` for the worker: the real one, except for `cuda` and `Event`."""

    cuda = SimpleNamespace(Stream=HostStream, current_stream=HostStream)
    Event = HostEvent

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class DeferredEvent:
    """The completion event of a copy."""

    def __init__(self, copies: DeferredCopies[int], key: int) -> None:
        self.copies, self.key, self.completed = copies, key, False

    def query(self) -> bool:
        """Return whether the copy has completed. The worker calls this once per step."""
        if not self.completed:
            self.copies.poll()
        return self.completed

    def synchronize(self) -> None:
        """Complete the copy now."""
        self.copies.wait({self.key})


class DeferredCopyBackend:
    """Copies blocks between the pool and host memory. Each direction completes in the order of submission."""

    def __init__(self) -> None:
        self.stores: DeferredCopies[int] = DeferredCopies()
        self.loads: DeferredCopies[int] = DeferredCopies()
        self.keys = itertools.count()
        self.pool: Caches = {}
        self.host: Caches = {}

    def init(self, gpu_caches: Caches, cpu_caches: Caches, *_: Any) -> None:
        """Set the tensors, each of shape `[blocks, bytes]`."""
        self.pool, self.host = gpu_caches, cpu_caches

    def launch_copy(
        self,
        src_blocks: list[int],
        dst_blocks: list[int],
        is_store: bool,
        event_idx: int,
        events_list: list[tuple[int, DeferredEvent]],
        wait_event: HostEvent | None = None,  # noqa: ARG002 - its work is already complete
    ) -> None:
        """Submit a copy and append its completion event to `events_list`."""
        copies = self.stores if is_store else self.loads
        source, target = (self.pool, self.host) if is_store else (self.host, self.pool)
        event = DeferredEvent(copies, next(self.keys))
        source_blocks, target_blocks = list(src_blocks), list(dst_blocks)

        def copy() -> None:
            for name in source:
                target[name][target_blocks] = source[name][source_blocks]
            event.completed = True

        copies.submit(event.key, copy, polls_of((*source_blocks, *target_blocks)))
        events_list.append((event_idx, event))

    def shutdown(self) -> None:
        """Complete all copies."""
        self.stores.drain()
        self.loads.drain()
