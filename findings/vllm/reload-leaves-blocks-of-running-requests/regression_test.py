# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""After a reload in place, a running request publishes no block (tests/v1/engine/test_engine_core.py)."""

from types import SimpleNamespace
from unittest.mock import MagicMock

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.engine.core import EngineCore
from vllm.v1.request import Request

BLOCK_SIZE = 16


@pytest.mark.parametrize(("reloaded", "published"), [("tenant", 1), ("other", 3)])
def test_no_block_is_cached_after_the_adapter_was_replaced(reloaded: str, published: int) -> None:
    init_none_hash(sha256)
    pool = BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=BLOCK_SIZE)
    request = Request(
        request_id="0",
        prompt_token_ids=list(range(3 * BLOCK_SIZE)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=LoRARequest("tenant", 1, "/adapters/a"),
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )
    core = SimpleNamespace(model_executor=MagicMock(), scheduler=SimpleNamespace(requests={"0": request}))
    blocks = pool.get_new_blocks(3)

    pool.cache_full_blocks(request, blocks, 0, 1, BLOCK_SIZE, 0)  # computed with the adapter of its key
    number = request.lora_request.lora_int_id if reloaded == "tenant" else 2
    EngineCore.add_lora(core, LoRARequest(reloaded, number, "/adapters/b", load_inplace=True))
    pool.cache_full_blocks(request, blocks, 1, 3, BLOCK_SIZE, 0)  # computed with what is loaded now

    assert len(pool.cached_block_hash_to_block) == published
