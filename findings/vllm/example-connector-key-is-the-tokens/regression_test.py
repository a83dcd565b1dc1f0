# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Saved KV is found under its own salt and adapter alone (tests/v1/kv_connector/unit/test_example_connector.py)."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from vllm import SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.base import KVConnectorRole
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector
from vllm.engine.arg_utils import EngineArgs
from vllm.lora.request import LoRARequest
from vllm.v1.core.sched.output import CachedRequestData, NewRequestData
from vllm.v1.kv_cache_interface import KVCacheConfig
from vllm.v1.request import Request

BLOCK_SIZE = 32
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
def connector(tmp_path: Path) -> ExampleConnector:
    (tmp_path / "config.json").write_text(json.dumps(MODEL))
    tier = {
        "kv_connector": "ExampleConnector",
        "kv_role": "kv_both",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path / "tier")},
    }
    args = EngineArgs(str(tmp_path), skip_tokenizer_init=True, block_size=BLOCK_SIZE, kv_transfer_config=tier)
    groups = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[])
    return ExampleConnector(args.create_engine_config(), KVConnectorRole.SCHEDULER, groups)


def make_request(request_id: str, **identity: object) -> Request:
    tokens = list(range(2 * BLOCK_SIZE + 5))
    return Request(request_id, tokens, SamplingParams(max_tokens=1), None, **identity)


def save(connector: ExampleConnector, request: Request) -> None:
    """Make the folder to which the worker saves the prompt's blocks."""
    connector.get_num_new_matched_tokens(request, 0)
    new = NewRequestData.from_request(request, ([1, 2, 3],))
    step = SimpleNamespace(scheduled_new_reqs=[new], scheduled_cached_reqs=CachedRequestData.make_empty())
    (saved,) = connector.build_connector_meta(step).requests
    assert saved.is_store
    tokens = torch.as_tensor(saved.token_ids)
    connector._generate_foldername_debug(tokens, saved.mm_hashes, create_folder=True)


@pytest.mark.parametrize(
    ("identity", "found"),
    [
        ({"cache_salt": "red"}, 2 * BLOCK_SIZE),
        ({"cache_salt": "blue"}, 0),
        ({}, 0),
        ({"cache_salt": "red", "lora_request": LoRARequest("tenant", 1, "/adapters/a")}, 0),
    ],
)
def test_kv_is_found_by_the_same_identity(connector: ExampleConnector, identity: dict, found: int) -> None:
    save(connector, make_request("0", cache_salt="red"))
    assert connector.get_num_new_matched_tokens(make_request("1", **identity), 0) == (found, False)
