# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Block hashes cover which positions are embedding rows (tests/v1/core/test_kv_cache_utils.py)."""

import pytest
import torch
from vllm import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

BLOCK_SIZE = 16


def make_mixed_request(request_id: str, rows: torch.Tensor, is_token: list[bool]) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=[0] * len(is_token),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        prompt_embeds=rows,
        prompt_is_token_ids=is_token,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


@pytest.mark.parametrize("position", [0, BLOCK_SIZE - 1, BLOCK_SIZE])
def test_a_row_and_a_token_have_different_hashes(position: int) -> None:
    init_none_hash(sha256)
    rows = torch.randn(2 * BLOCK_SIZE, 8)
    tokens = [True] * len(rows)
    with_row = [index != position for index in range(len(rows))]

    first = make_mixed_request("0", rows, tokens).block_hashes
    second = make_mixed_request("1", rows, with_row).block_hashes

    block = position // BLOCK_SIZE
    assert first[:block] == second[:block]
    assert first[block] != second[block]


def test_equal_prompts_have_equal_hashes() -> None:
    init_none_hash(sha256)
    rows = torch.randn(2 * BLOCK_SIZE, 8)
    mask = [index % 3 == 0 for index in range(len(rows))]
    assert make_mixed_request("0", rows, mask).block_hashes == make_mixed_request("1", rows, mask).block_hashes
