"""vLLM's tiered offloading (host memory, then files) without a GPU: only the copies to host memory are replaced.

As in offloading.py, vLLM loads the spec by `spec_name` and `spec_module_path`. The files, their names and the transfers
between host memory and files are vLLM's own. Host memory is the region that vLLM's file tier reads and writes.
"""

from __future__ import annotations

from vllm.v1.kv_offload.base import CanonicalKVCaches
from vllm.v1.kv_offload.cpu.shared_offload_region import SharedOffloadRegion
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

from coldproof.adapters.vllm.fingerprint.connectors.offloading import HostOffloadingWorker
from coldproof.adapters.vllm.releases import host_region_sizes, host_view


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

    def shutdown(self) -> None:
        """Complete all transfers and release the region."""
        super().shutdown()
        self.host.clear()
        self.region.cleanup()
