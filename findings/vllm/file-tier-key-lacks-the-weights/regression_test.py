# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""The folder of the file tier depends on the weights (tests/v1/kv_offload/test_file_mapper.py)."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "vocab_size": 128,
}


def base_path(model: Path, weights: float, **changes: object) -> str:
    (model / "config.json").write_text(json.dumps(MODEL | changes))
    save_file({"lm_head.weight": torch.full((128, 64), weights)}, model / "model.safetensors")
    config = EngineArgs(str(model), skip_tokenizer_init=True, kv_offloading_size=0.01).create_engine_config()
    attention = FullAttentionSpec(block_size=128, num_kv_heads=2, head_size=32, dtype=torch.float32)
    groups = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["0"], attention)])
    spec = TieringOffloadingSpec(build_offloading_config(config, groups))
    return FileMapper.from_offloading_spec("/tier", spec).base_path


@pytest.mark.parametrize(
    ("weights", "changes", "same"),
    [(0.0, {}, True), (1.0, {}, False), (0.0, {"rope_theta": 5000.0}, False)],
)
def test_base_path_depends_on_the_model(tmp_path: Path, weights: float, changes: dict[str, object], same: bool) -> None:
    first = base_path(tmp_path, 0.0)
    assert (base_path(tmp_path, weights, **changes) == first) is same
