"""vLLM 0.32.0: the KV events of a name at two paths differ in their hashes alone. Exit status 1: as described."""

import sys

from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

init_none_hash(sha256)
hasher = get_request_block_hasher(32, sha256)
pool = BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=32, enable_kv_cache_events=True)
for path in ("/adapters/a", "/adapters/b"):
    adapter = LoRARequest("tenant", 1, path)
    request = Request("0", [7] * 32, SamplingParams(max_tokens=1), None, lora_request=adapter, block_hasher=hasher)
    pool.cache_full_blocks(request, pool.get_new_blocks(1), 0, 1, 32, 0)
first, second = ((one.token_ids, one.lora_name, one.extra_keys) for one in pool.take_events())
print(f"the inputs of two different hashes are equal in their events: {first == second}; expected: False")
sys.exit(first == second)
