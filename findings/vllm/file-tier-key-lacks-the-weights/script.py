"""vLLM 0.32.0: the file tier of OffloadingConnector names its files without the weights. Exit status 1: the bug."""

import sys, tempfile

import torch
from transformers import LlamaConfig, LlamaForCausalLM
from vllm.distributed.kv_transfer.kv_connector.v1.offloading.config import build_offloading_config
from vllm.engine.arg_utils import EngineArgs
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec
from vllm.v1.kv_offload.file_mapper import FileMapper
from vllm.v1.kv_offload.tiering.spec import TieringOffloadingSpec

folder, paths = tempfile.mkdtemp(), []
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
cache = FullAttentionSpec(block_size=128, num_kv_heads=2, head_size=32, dtype=torch.float32)
groups = KVCacheConfig(num_blocks=8, kv_cache_tensors=[], kv_cache_groups=[KVCacheGroupSpec(["layer"], cache)])
for _ in range(2):  # the same path, with other weights each time
    LlamaForCausalLM(LlamaConfig(vocab_size=128, **sizes)).save_pretrained(folder)
    config = EngineArgs(folder, skip_tokenizer_init=True, kv_offloading_size=0.01).create_engine_config()
    spec = TieringOffloadingSpec(build_offloading_config(config, groups))
    paths.append(FileMapper.from_offloading_spec("", spec).base_path[-12:])
print(f"folders of two models end with {paths}; expected: two folders")
sys.exit(paths[0] == paths[1])
