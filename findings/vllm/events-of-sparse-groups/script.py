"""vLLM 0.32.0: a KV event of a group that keeps some blocks has the tokens of all. Exit status 1: the bug."""

import sys

from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

init_none_hash(sha256)
hasher = get_request_block_hasher(32, sha256)
request = Request("0", list(range(128)), SamplingParams(max_tokens=1), None, block_hasher=hasher)
pool = BlockPool(num_gpu_blocks=8, enable_caching=True, hash_block_size=32, enable_kv_cache_events=True)
blocks = pool.get_new_blocks(4)
pool.cache_full_blocks(request, blocks, 0, 4, 32, 0, block_mask=[False, True, False, True])  # as of a sliding window
counts = [(len(event.block_hashes), len(event.token_ids)) for event in pool.take_events()]
print(f"events with (hashes, tokens): {counts}; expected: 32 tokens for each hash")
sys.exit(any(tokens != 32 * hashes for hashes, tokens in counts))
