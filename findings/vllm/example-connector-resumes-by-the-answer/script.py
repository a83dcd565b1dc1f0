"""vLLM 0.32.0: ExampleConnector ends the engine when a request resumes in its answer. Exit status 1: the bug."""

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
engine = LLM(folder, max_model_len=256, block_size=32, kv_transfer_config=tier, **options).llm_engine
engine.add_request("0", {"prompt_token_ids": list(range(1, 61))}, SamplingParams(max_tokens=60, detokenize=False))
try:
    for step in range(60):
        if step == 50:  # behind the prompt, the answer has filled a block
            engine.reset_prefix_cache(reset_running_requests=True)
        engine.step()
    print("the request resumes, as expected")
except FileNotFoundError:
    sys.exit("the resumed request ends the engine by a FileNotFoundError; expected: an answer")
