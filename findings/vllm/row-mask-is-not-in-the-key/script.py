"""vLLM 0.32.0: a token 0 and an embedding row at its position have one block hash. Exit status 1: the bug."""

import sys

import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

init_none_hash(sha256)
hasher = get_request_block_hasher(32, sha256)
tokens, rows = [0] * 32, torch.randn(32, 64)
options = {"prompt_embeds": rows, "block_hasher": hasher, "pooling_params": None}
masks = [True] * 32, [True] * 31 + [False]  # whether the model sees the token, or the row
requests = [Request("0", tokens, SamplingParams(max_tokens=1), prompt_is_token_ids=mask, **options) for mask in masks]
equal = requests[0].block_hashes == requests[1].block_hashes
print(f"32 tokens, and 31 tokens with a row behind them, have equal block hashes: {equal}; expected: False")
sys.exit(equal)
