"""vLLM's OffloadingConnector without a GPU: only the copies are replaced.

vLLM's `CPUOffloadingSpec.get_worker` refuses a CPU platform, and its handlers need CUDA tensors, streams and events.
This spec uses vLLM's scheduler, manager and index with a worker that copies between host tensors. vLLM loads it by
`spec_name` and `spec_module_path`, an official extension point.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, GPULoadStoreSpec
from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from coldproof.adapters.vllm.fingerprint.connectors.deferred_copies import DeferredCopies, polls_of
from coldproof.adapters.vllm.releases import blocks_per_chunk, host_chunks, offloading_types

Blocks = npt.NDArray[np.int64]
OffloadingWorker, TransferResult = offloading_types()


class HostOffloadingSpec(CPUOffloadingSpec):
    """vLLM's specification of CPU offloading, with a worker that needs no device."""

    _worker: HostOffloadingWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> HostOffloadingWorker:
        """Return the worker, which is created by the first call."""
        if self._worker is None:
            self._worker = HostOffloadingWorker(kv_caches, blocks_per_chunk(self), host_chunks(self))
        return self._worker

    def get_handlers(self, kv_caches: CanonicalKVCaches) -> Iterator[tuple[type, type, Direction]]:
        """Yield the worker's directions, with their source and target. Up to 0.24, vLLM asks for these."""
        worker = self.get_worker(kv_caches)
        yield GPULoadStoreSpec, CPULoadStoreSpec, Direction(worker, worker.submit_store)
        yield CPULoadStoreSpec, GPULoadStoreSpec, Direction(worker, worker.submit_load)


class HostOffloadingWorker(OffloadingWorker):  # type: ignore[misc, valid-type]  # its module depends on the release
    """Copies pages between the pool's tensors and host memory with the number of chunks that vLLM's manager expects."""

    def __init__(self, caches: CanonicalKVCaches, blocks_per_chunk: int, chunks: int) -> None:
        self.pool = [one.tensor.view(torch.int8) for one in caches.tensors]
        pages = [one.page_size_bytes for one in caches.tensors]
        self.host = [torch.zeros((chunks * blocks_per_chunk, page), dtype=torch.int8) for page in pages]
        self.refs = caches.group_data_refs
        self.blocks_per_chunk = blocks_per_chunk
        self.stores: DeferredCopies[int] = DeferredCopies()
        self.loads: DeferredCopies[int] = DeferredCopies()
        self.sizes: dict[int, int] = {}  # job -> bytes

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Submit a copy from the pool to the host."""
        plan = self.plan(job_id, src_spec, dst_spec)
        self.stores.submit(job_id, lambda: self.copy(plan, self.pool, self.host), polls_of(blocks_of(plan)))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """Submit a copy from the host to the pool."""
        plan = [(group, host, pool) for group, pool, host in self.plan(job_id, dst_spec, src_spec)]
        self.loads.submit(job_id, lambda: self.copy(plan, self.host, self.pool), polls_of(blocks_of(plan)))
        return True

    def plan(self, job_id: int, pool_spec: Any, host_spec: Any) -> list[tuple[int, Blocks, Blocks]]:
        """Return (group, its blocks in the pool, its blocks on the host). The first and last chunk may be partial."""
        plan, at, chunk_at = [], 0, 0
        chunks = np.asarray(host_spec.block_ids, dtype=np.int64)
        blocks = np.asarray(pool_spec.block_ids, dtype=np.int64)
        for group, (size, first) in enumerate(zip(pool_spec.group_sizes, pool_spec.block_indices, strict=True)):
            if not size:
                continue
            skipped = first % self.blocks_per_chunk
            count = -(-(size + skipped) // self.blocks_per_chunk)
            host_blocks = chunk_blocks(chunks[chunk_at : chunk_at + count], self.blocks_per_chunk)
            plan.append((group, blocks[at : at + size], host_blocks[skipped : skipped + size]))
            at, chunk_at = at + size, chunk_at + count
        assert (at, chunk_at) == (len(blocks), len(chunks))
        self.sizes[job_id] = sum(len(pool) * ref.page_size_bytes for g, pool, _ in plan for ref in self.refs[g])
        return plan

    def copy(
        self, plan: list[tuple[int, Blocks, Blocks]], source: Sequence[torch.Tensor], target: Sequence[torch.Tensor]
    ) -> None:
        """Copy whole pages of all layers. `plan`: (group, source blocks, target blocks)."""
        for group, source_blocks, target_blocks in plan:
            for ref in self.refs[group]:
                size = ref.page_size_bytes
                target[ref.tensor_idx][target_blocks, :size] = source[ref.tensor_idx][source_blocks, :size]

    def get_finished(self) -> list[Any]:
        """Return a TransferResult for each transfer that has completed since the last poll."""
        completed = [*self.stores.poll(), *self.loads.poll()]
        return [TransferResult(job_id=job, success=True, transfer_size=self.sizes.pop(job)) for job in completed]

    def wait(self, job_ids: set[int]) -> None:
        """Complete these transfers now."""
        self.stores.wait(job_ids)
        self.loads.wait(job_ids)

    def shutdown(self) -> None:
        """Complete all transfers."""
        self.stores.drain()
        self.loads.drain()


class Direction:
    """The copies of a worker in one direction. What is polled or waited for is the worker's as a whole."""

    def __init__(self, worker: HostOffloadingWorker, submit: Callable[[int, Any, Any], bool]) -> None:
        self.submit = submit
        self.get_finished, self.wait, self.shutdown = worker.get_finished, worker.wait, worker.shutdown

    def transfer_async(self, job_id: int, spec: tuple[Any, Any]) -> bool:
        """Submit a copy. `spec`: its source and its target."""
        return self.submit(job_id, *spec)


def blocks_of(plan: list[tuple[int, Blocks, Blocks]]) -> Iterator[int]:
    """Yield the blocks of both sides of a copy."""
    for _, source, target in plan:
        yield from source
        yield from target


def chunk_blocks(chunks: Blocks, blocks_per_chunk: int) -> Blocks:
    """Return the indices of all blocks of the chunks."""
    return (chunks[:, None] * blocks_per_chunk + np.arange(blocks_per_chunk)).ravel()
