# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Block hashes depend on the contents of an adapter (tests/v1/core/test_kv_cache_utils.py)."""

from pathlib import Path

import pytest
from vllm import SamplingParams
from vllm.lora.request import LoRARequest
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.request import Request

BLOCK_SIZE = 16


def make_lora_request(request_id: str, path: Path) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=list(range(3 * BLOCK_SIZE)),
        sampling_params=SamplingParams(max_tokens=1),
        pooling_params=None,
        lora_request=LoRARequest("tenant", 1, str(path)),
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


@pytest.mark.parametrize("replaced", [True, False])
def test_block_hashes_depend_on_adapter_contents(tmp_path: Path, replaced: bool) -> None:
    init_none_hash(sha256)
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"weights of A")
    before = make_lora_request("0", tmp_path).block_hashes

    weights.write_bytes(b"weights of B" if replaced else b"weights of A")
    after = make_lora_request("1", tmp_path).block_hashes

    assert len(before) == len(after) == 3
    assert [a != b for a, b in zip(before, after)] == [replaced] * 3
