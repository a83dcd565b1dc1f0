# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Blocks whose synchronous load failed are not hit (tests/v1/kv_connector/unit/test_invalid_blocks_correctness.py)."""

import json
from pathlib import Path
from unittest.mock import MagicMock, patch

import pytest
import torch
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector, ExampleConnectorMetadata
from vllm.engine.arg_utils import EngineArgs
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.core.sched.scheduler import Scheduler
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.outputs import KVConnectorOutput, ModelRunnerOutput
from vllm.v1.request import Request, RequestStatus

BLOCK_SIZE, LOADED = 32, 3  # the connector offers three blocks of a prompt
MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 128,
}


@pytest.fixture
def scheduler(tmp_path: Path):
    init_none_hash(sha256)
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    tier = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
    config = EngineArgs(
        str(tmp_path),
        skip_tokenizer_init=True,
        block_size=BLOCK_SIZE,
        enable_prefix_caching=True,
        async_scheduling=False,
        kv_transfer_config=tier,
    ).create_engine_config()
    config.cache_config.num_gpu_blocks = 16
    attention = FullAttentionSpec(block_size=BLOCK_SIZE, num_kv_heads=2, head_size=32, dtype=torch.float32)
    groups = KVCacheConfig(num_blocks=16, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["0"], attention)])
    with (
        patch.object(
            ExampleConnector,
            "get_num_new_matched_tokens",
            lambda self, request, computed: (max(LOADED * BLOCK_SIZE - computed, 0), False),
        ),
        patch.object(ExampleConnector, "build_connector_meta", lambda self, output: ExampleConnectorMetadata()),
    ):
        yield Scheduler(config, groups, MagicMock(), BLOCK_SIZE)


def make_request(request_id: str) -> Request:
    return Request(
        request_id=request_id,
        prompt_token_ids=list(range(LOADED * BLOCK_SIZE + 5)),
        sampling_params=SamplingParams(max_tokens=8),
        pooling_params=None,
        block_hasher=get_request_block_hasher(BLOCK_SIZE, sha256),
    )


@pytest.mark.parametrize("first_invalid", [0, LOADED - 1])
def test_invalid_blocks_leave_the_prefix_cache(scheduler: Scheduler, first_invalid: int) -> None:
    request = make_request("0")
    scheduler.add_request(request)
    output = scheduler.schedule()
    blocks = scheduler.kv_cache_manager.get_block_ids("0")[0]
    invalid = set(blocks[first_invalid:LOADED])
    scheduler.update_from_output(
        output,
        ModelRunnerOutput(
            req_ids=["0"],
            req_id_to_index={"0": 0},
            sampled_token_ids=[[1]],
            kv_connector_output=KVConnectorOutput(invalid_block_ids=invalid),
        ),
    )
    # Its client leaves before the blocks are computed.
    scheduler.finish_requests("0", RequestStatus.FINISHED_ABORTED)

    _, hit, _ = (*scheduler.kv_cache_manager.get_computed_blocks(make_request("1")), None)[:3]

    assert hit == first_invalid * BLOCK_SIZE
