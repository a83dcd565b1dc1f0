"""vLLM's SimpleCPUOffloadConnector without a GPU: everything is vLLM's but streams, events and copies.

Its worker makes CUDA streams, and its copies go through cuMemcpyBatchAsync in a thread of their own. Both are replaced
by name in the worker's module, which is of no use without CUDA; the scheduler's side is not touched. A class of our own
in the connector's place would not do: MultiConnector finds its parts by their names.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
from vllm.v1.simple_kv_offload import worker as vllm_worker

from adapters.fingerprint.tier.copies import LateCopies

LOOKS = 1  # steps that a copy takes
Caches = dict[str, torch.Tensor]


def use_host_memory() -> None:
    """From here on the connector's workers in this process copy between host tensors."""
    vllm_worker.torch = HostTorch()
    vllm_worker.DmaCopyBackend = LateCopyBackend


class HostStream:
    """A stream that has nothing to order: the host writes before it submits."""

    def __init__(self, **_: Any) -> None:
        pass

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest."""
        return 0, 0


class HostCuda:
    """As much of `torch.cuda` as the worker uses."""

    Stream = HostStream

    @staticmethod
    def current_stream() -> HostStream:
        """The only one."""
        return HostStream()


class HostEvent:
    """What is recorded before a copy is submitted has already happened."""

    def record(self, stream: HostStream) -> None:
        """Nothing runs ahead of the host."""


class HostTorch:
    """The torch that the worker sees: the real one but for `cuda` and `Event`."""

    cuda = HostCuda
    Event = HostEvent

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)


class LateEvent:
    """The end of a copy, as the worker asks for it: once a step, or to wait for it."""

    def __init__(self, copies: LateCopies[int], key: int) -> None:
        self.copies, self.key, self.over = copies, key, False

    def query(self) -> bool:
        """Whether the copy has ended."""
        if not self.over:
            self.copies.finished()
        return self.over

    def synchronize(self) -> None:
        """Wait for it."""
        self.copies.wait({self.key})


class LateCopyBackend:
    """Copies blocks between the pool and host memory, in order of submission, each direction for itself."""

    def __init__(self) -> None:
        self.stores: LateCopies[int] = LateCopies(LOOKS)
        self.loads: LateCopies[int] = LateCopies(LOOKS)
        self.keys = itertools.count()
        self.pool: Caches = {}
        self.host: Caches = {}

    def init(self, gpu_caches: Caches, cpu_caches: Caches, *_: Any) -> None:
        """Take over the tensors, `[blocks, bytes]` each."""
        self.pool, self.host = gpu_caches, cpu_caches

    def launch_copy(
        self,
        src_blocks: list[int],
        dst_blocks: list[int],
        is_store: bool,
        event_idx: int,
        events_list: list[tuple[int, LateEvent]],
        wait_event: HostEvent | None = None,  # noqa: ARG002 - recorded before, so it has happened
    ) -> None:
        """Submit a copy and its event."""
        copies = self.stores if is_store else self.loads
        source, target = (self.pool, self.host) if is_store else (self.host, self.pool)
        event = LateEvent(copies, next(self.keys))
        mine, theirs = list(src_blocks), list(dst_blocks)

        def copy() -> None:
            for name in source:
                target[name][theirs] = source[name][mine]
            event.over = True

        copies.submit(event.key, copy)
        events_list.append((event_idx, event))

    def shutdown(self) -> None:
        """Drain both directions."""
        self.stores.clear()
        self.loads.clear()
