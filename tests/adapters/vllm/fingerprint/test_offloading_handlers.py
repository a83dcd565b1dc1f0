"""Up to vLLM 0.24 the offloading connector needs a handler for each direction instead of a worker."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.engine]
PAGE = 8  # bytes


def test_each_direction_copies_its_way() -> None:
    """The second handler loads what the first one stored into other blocks, and each reports its transfer once."""
    import torch
    from vllm.v1.kv_offload.base import (
        CanonicalKVCacheRef,
        CanonicalKVCaches,
        CanonicalKVCacheTensor,
        GPULoadStoreSpec,
    )
    from vllm.v1.kv_offload.cpu.common import CPULoadStoreSpec

    from coldproof.adapters.vllm.fingerprint.connectors.offloading import HostOffloadingSpec

    pool = torch.arange(6 * PAGE, dtype=torch.int8).reshape(6, PAGE)
    wanted = pool[1:3].clone()
    spec = HostOffloadingSpec.__new__(HostOffloadingSpec)  # the arguments of its constructor depend on the release
    spec.blocks_per_chunk, spec.num_chunks = 1, 4
    refs = [[CanonicalKVCacheRef(tensor_idx=0, page_size_bytes=PAGE)]]
    caches = CanonicalKVCaches([CanonicalKVCacheTensor(tensor=pool, page_size_bytes=PAGE)], refs)
    (source, target, store), (back_source, back_target, load) = spec.get_handlers(caches)
    assert (source, target, back_source, back_target) == (
        GPULoadStoreSpec,
        CPULoadStoreSpec,
        CPULoadStoreSpec,
        GPULoadStoreSpec,
    )

    def blocks(*ids: int) -> GPULoadStoreSpec:
        return GPULoadStoreSpec(list(ids), group_sizes=[len(ids)], block_indices=[0])

    assert store.transfer_async(1, (blocks(1, 2), CPULoadStoreSpec([0, 3])))
    store.wait({1})
    pool.zero_()
    assert load.transfer_async(2, (CPULoadStoreSpec([0, 3]), blocks(4, 5)))
    load.wait({2})
    assert torch.equal(pool[4:6], wanted)
    assert [done.job_id for done in (*store.get_finished(), *load.get_finished())] == [1, 2]
    store.shutdown()
