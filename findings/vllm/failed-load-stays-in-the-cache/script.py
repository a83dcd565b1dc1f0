"""vLLM 0.32.0: blocks whose load failed stay in the prefix cache when their client leaves. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector, ExampleConnectorMetadata

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
failed = []  # the connector offers 96 tokens of each prompt, and no load succeeds
ExampleConnector.get_num_new_matched_tokens = lambda self, request, computed: (96 - computed, False)
ExampleConnector.update_state_after_alloc = lambda self, request, blocks, n: failed.extend(blocks.get_block_ids()[0])
ExampleConnector.build_connector_meta = lambda self, output: ExampleConnectorMetadata()
ExampleConnector.get_block_ids_with_load_errors = lambda self: set(failed)
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
tier = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
engine = LLM(folder, max_model_len=256, kv_transfer_config=tier, **options).llm_engine
engine.add_request("0", {"prompt_token_ids": list(range(1, 102))}, SamplingParams(detokenize=False))
engine.step()  # the load fails; the request would compute these blocks in the next step
engine.abort_request(["0"])
pool = engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool
print(f"blocks in the prefix cache: {len(pool.cached_block_hash_to_block)}; expected: 0")
sys.exit(len(pool.cached_block_hash_to_block) > 0)
