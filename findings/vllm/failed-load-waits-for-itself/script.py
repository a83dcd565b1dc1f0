"""vLLM 0.32.0: after a failed asynchronous load, a request waits forever for its own blocks. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.distributed.kv_transfer.kv_connector.v1.example_connector import ExampleConnector, ExampleConnectorMetadata

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
loads, done = [], []  # the connector offers 288 tokens of a prompt; the first load fails, the second one does not
ExampleConnector.get_num_new_matched_tokens = lambda self, request, computed: (288 - computed, True)
ExampleConnector.update_state_after_alloc = lambda self, request, blocks, n: (
    n and (loads.append(blocks.get_block_ids()[0]), done.append(request.request_id))
)
ExampleConnector.build_connector_meta = lambda self, output: ExampleConnectorMetadata()
ExampleConnector.get_finished = lambda self, names: (None, {done.pop() for _ in list(done)})
ExampleConnector.get_block_ids_with_load_errors = lambda self: set(*loads) if len(loads) == 1 else set()
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
tier = {"kv_connector": "ExampleConnector", "kv_role": "kv_both", "kv_load_failure_policy": "recompute"}
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
engine = LLM(folder, max_model_len=320, num_gpu_blocks_override=17, kv_transfer_config=tier, **options).llm_engine
engine.add_request("0", {"prompt_token_ids": [7] * 300}, SamplingParams(max_tokens=4, detokenize=False))
steps = next((step for step in range(100) if any(answer.finished for answer in engine.step())), None)
sys.exit(steps is None and "300 tokens in a pool of 512 are not answered in 100 steps; expected: an answer")
