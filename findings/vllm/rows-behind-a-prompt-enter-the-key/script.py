"""vLLM 0.32.0: the next turn of a prompt with embedding rows misses what decode wrote. Exit status 1: the bug."""

import sys

import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

init_none_hash(sha256)
options = {"pooling_params": None, "block_hasher": get_request_block_hasher(32, sha256)}
tokens, rows = list(range(1, 65)), torch.randn(64, 16)
seen = [False] * 8 + [True] * 56  # the model sees rows at the first eight positions, and tokens behind them
ask = SamplingParams(max_tokens=32)
first = Request("0", tokens[:32], ask, prompt_embeds=rows[:32], prompt_is_token_ids=seen[:32], **options)
first.append_output_token_ids(tokens[32:])
turn = Request("1", tokens, ask, prompt_embeds=rows, prompt_is_token_ids=seen, **options)
hit = sum(one == other for one, other in zip(first.block_hashes, turn.block_hashes, strict=True))
print(f"the next turn hits {hit} of the 2 blocks of the turn before; expected: 2")
sys.exit(hit != 2)
