"""vLLM 0.32.0 on a CPU: with Mamba-2 layers, a chunk longer than a block ends the engine. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import Mamba2Config
from vllm import LLM, SamplingParams

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
folder = tempfile.mkdtemp()
sizes = {"hidden_size": 64, "num_hidden_layers": 2, "num_heads": 8, "head_dim": 16, "state_size": 16, "n_groups": 1}
Mamba2Config(architectures=["Mamba2ForCausalLM"], vocab_size=128, chunk_size=32, **sizes).save_pretrained(folder)
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32"}
llm = LLM(folder, max_model_len=512, block_size=32, enable_prefix_caching=True, **options)
try:
    llm.generate({"prompt_token_ids": list(range(1, 101))}, SamplingParams(max_tokens=4, detokenize=False))
    print("the prompt of 100 tokens is answered, as expected")
except IndexError as problem:
    sys.exit(f"the prompt of 100 tokens ends the engine: {problem}; expected: an answer")
