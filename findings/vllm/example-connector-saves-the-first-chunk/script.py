"""vLLM 0.32.0: with chunked prefill, ExampleConnector cannot load what it has saved. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.config import KVTransferConfig

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
folder = tempfile.mkdtemp()
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder)
files = {"shared_storage_path": folder}
tier = KVTransferConfig(kv_connector="ExampleConnector", kv_role="kv_both", kv_connector_extra_config=files)
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32"}
llm = LLM(folder, max_model_len=256, max_num_batched_tokens=64, block_size=32, kv_transfer_config=tier, **options)
try:
    for _ in range(2):
        llm.reset_prefix_cache()
        llm.generate({"prompt_token_ids": list(range(1, 103))}, SamplingParams(max_tokens=4, detokenize=False))
    print("the repeated prompt of 102 tokens is answered, as expected")
except RuntimeError as problem:
    sys.exit(f"the repeated prompt of 102 tokens ends the engine: {problem}; expected: an answer")
