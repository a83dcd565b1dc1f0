"""vLLM's OffloadingConnector without a GPU: everything is vLLM's but the copies.

vLLM's `CPUOffloadingSpec.get_worker` refuses a CPU platform, and its handlers want CUDA tensors, streams and events.
This spec (chosen by `spec_name` and `spec_module_path`, an extension point of vLLM) gives the same scheduler, manager
and index a worker that copies between host tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from vllm.v1.kv_offload.base import CanonicalKVCaches, OffloadingWorker, TransferResult
from vllm.v1.kv_offload.cpu.spec import CPUOffloadingSpec

from adapters.fingerprint.tier.copies import LateCopies

LOOKS = "looks"  # in the connector's options: how many steps a copy takes
Blocks = npt.NDArray[np.int64]


class HostOffloadingSpec(CPUOffloadingSpec):
    """vLLM's specification of offloading to the CPU, with a worker that needs no device."""

    _worker: OffloadingWorker | None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> OffloadingWorker:
        """The one worker of this process."""
        if self._worker is None:
            looks = int(self.extra_config.get(LOOKS, 1))
            self._worker = HostOffloadingWorker(kv_caches, self.blocks_per_chunk, self.num_chunks, looks)
        return self._worker


class HostOffloadingWorker(OffloadingWorker):
    """Copies pages between the pool's tensors and as many chunks of host memory as vLLM's manager counts on."""

    def __init__(self, caches: CanonicalKVCaches, blocks_per_chunk: int, chunks: int, looks: int) -> None:
        self.pool = [one.tensor.view(torch.int8) for one in caches.tensors]
        pages = [one.page_size_bytes for one in caches.tensors]
        self.host = [torch.zeros((chunks * blocks_per_chunk, page), dtype=torch.int8) for page in pages]
        self.refs = caches.group_data_refs
        self.blocks_per_chunk = blocks_per_chunk
        self.stores: LateCopies[int] = LateCopies(looks)
        self.loads: LateCopies[int] = LateCopies(looks)
        self.sizes: dict[int, int] = {}

    def submit_store(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """From the pool to the host, later."""
        plan = self.plan(job_id, src_spec, dst_spec)
        self.stores.submit(job_id, lambda: self.copy(plan, self.pool, self.host))
        return True

    def submit_load(self, job_id: int, src_spec: Any, dst_spec: Any) -> bool:
        """From the host to the pool, later."""
        plan = [(group, host, pool) for group, pool, host in self.plan(job_id, dst_spec, src_spec)]
        self.loads.submit(job_id, lambda: self.copy(plan, self.host, self.pool))
        return True

    def plan(self, job_id: int, pool_spec: Any, host_spec: Any) -> list[tuple[int, Blocks, Blocks]]:
        """(group, its blocks in the pool, their places on the host). A chunk may begin or end between its blocks."""
        plan, at, chunk_at = [], 0, 0
        chunks = np.asarray(host_spec.block_ids, dtype=np.int64)
        blocks = np.asarray(pool_spec.block_ids, dtype=np.int64)
        for group, (size, first) in enumerate(zip(pool_spec.group_sizes, pool_spec.block_indices, strict=True)):
            if not size:
                continue
            skipped = first % self.blocks_per_chunk
            count = -(-(size + skipped) // self.blocks_per_chunk)
            places = expanded(chunks[chunk_at : chunk_at + count], self.blocks_per_chunk)
            plan.append((group, blocks[at : at + size], places[skipped : skipped + size]))
            at, chunk_at = at + size, chunk_at + count
        assert (at, chunk_at) == (len(blocks), len(chunks))
        self.sizes[job_id] = sum(len(mine) * ref.page_size_bytes for g, mine, _ in plan for ref in self.refs[g])
        return plan

    def copy(
        self, plan: list[tuple[int, Blocks, Blocks]], source: Sequence[torch.Tensor], target: Sequence[torch.Tensor]
    ) -> None:
        """Whole pages of every layer of the groups."""
        for group, mine, theirs in plan:
            for ref in self.refs[group]:
                size = ref.page_size_bytes
                target[ref.tensor_idx][theirs, :size] = source[ref.tensor_idx][mine, :size]

    def get_finished(self) -> list[TransferResult]:
        """The transfers that have ended since the last look."""
        ended = [*self.stores.finished(), *self.loads.finished()]
        return [TransferResult(job_id=job, success=True, transfer_size=self.sizes.pop(job)) for job in ended]

    def wait(self, job_ids: set[int]) -> None:
        """Let these end now."""
        self.stores.wait(job_ids)
        self.loads.wait(job_ids)

    def shutdown(self) -> None:
        """Drain both directions."""
        self.stores.clear()
        self.loads.clear()


def expanded(chunks: Blocks, blocks_per_chunk: int) -> Blocks:
    """The places of every block of chunks."""
    return (chunks[:, None] * blocks_per_chunk + np.arange(blocks_per_chunk)).ravel()
