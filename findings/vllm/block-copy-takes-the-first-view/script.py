"""vLLM 0.32.0: a copied block lacks what the second of two views of one allocation has. Exit status 1: the bug."""

import sys

import torch
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

blocks, page = 4, 64
allocation = torch.zeros(2, blocks, page)  # two layers for each group, one behind the other
attention, state = allocation[0], allocation[0, :, :10]  # both begin at one address; the state's page is padded
attention[1] = 1.0
copy_kv_cache_blocks_inplace([state, attention], blocks, [(1, 2)])
copied = int(attention[2].sum())
print(f"copied for the attention layer: {copied} of {page} numbers; expected: {page}")
sys.exit(copied != page)
