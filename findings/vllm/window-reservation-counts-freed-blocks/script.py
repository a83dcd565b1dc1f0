"""vLLM 0.32.0: the reservation of a sliding window counts blocks that were given back. Exit status 1: the bug."""

import sys

import torch
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.core.single_type_kv_cache_manager import SlidingWindowManager
from vllm.v1.kv_cache_interface import SlidingWindowSpec

spec = SlidingWindowSpec(block_size=32, num_kv_heads=1, head_size=8, dtype=torch.float32, sliding_window=64)
pool = BlockPool(num_gpu_blocks=32, enable_caching=True, hash_block_size=32)
options = {"enable_caching": True, "kv_cache_group_id": 0, "scheduler_block_size": 32}
most = spec.max_admission_blocks_per_request(max_in_flight_tokens=64, max_model_len=512)
manager = SlidingWindowManager(spec, block_pool=pool, max_admission_blocks_per_request=most, **options)
manager.allocate_new_blocks("0", 192, 192)
manager.remove_skipped_blocks("0", 192)
manager.num_cached_block["0"] = 6  # a running request
held = sum(not block.is_null for block in manager.req_to_blocks["0"])
missing = manager.get_num_blocks_to_allocate("0", 193, [], 192, 0, 193, apply_admission_cap=True)
print(f"a request with {held} of at most {most} blocks needs {missing} for its next token; expected: 1")
sys.exit(missing != 1)
