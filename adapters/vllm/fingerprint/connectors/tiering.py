"""vLLM's tiered offloading (host memory, then files) without a GPU: only the copies to host memory are replaced.

As in offloading.py, vLLM loads the spec by `spec_name` and `spec_module_path`. The files, their names and the transfers
between host memory and files are vLLM's own. Host memory is the region that vLLM's file tier reads and writes.
"""

from __future__ import annotations

import time
from typing import Any

from vllm.v1.kv_offload.base import CanonicalKVCaches
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from coldproof.adapters.vllm.fingerprint.connectors.offloading import HostOffloadingWorker
from coldproof.adapters.vllm.releases import host_region_sizes, host_view

FILE_SECONDS = 0.005  # longer than one of the tests' small files is read or written
FORWARD_SECONDS = 0.0005  # in which a model computes, and the threads of a tier run


class HostTieringSpec(TieringOffloadingSpec):
    """vLLM's specification of tiered offloading, with a worker that needs no device. A chunk is one block."""

    _worker: HostTieringWorker | None = None

    def get_worker(self, kv_caches: CanonicalKVCaches) -> HostTieringWorker:
        """Return the worker, which is created by the first call."""
        if self._worker is None:
            region = SharedOffloadRegion(
                engine_id=self._engine_id,
                rank=0,
                cpu_page_size=self.cpu_page_size_per_worker,
                **host_region_sizes(self),
            )
            self._worker = HostTieringWorker(kv_caches, region)
        return self._worker


class HostTieringWorker(HostOffloadingWorker):
    """Copies pages between the pool's tensors and the region of the tiers."""

    def __init__(self, caches: CanonicalKVCaches, region: SharedOffloadRegion) -> None:
        super().__init__(caches, 1, 0)
        self.region = region
        self.host = [host_view(region, one.page_size_bytes) for one in caches.tensors]

    def get_finished(self) -> list[Any]:
        """Return a TransferResult for each transfer that has completed, after a time in which tiers look for files."""
        time.sleep(FORWARD_SECONDS)
        return super().get_finished()

    def wait(self, job_ids: set[int]) -> None:
        """Complete these transfers now, but after the files that are read or written at the same time.

        A device may be slower than a disk. Whatever of the two is later has the last word in a slot of host memory, so
        that an engine must keep them apart.
        """
        time.sleep(FILE_SECONDS)
        super().wait(job_ids)

    def shutdown(self) -> None:
        """Complete all transfers and release the region."""
        super().shutdown()
        self.host.clear()
        self.region.cleanup()
