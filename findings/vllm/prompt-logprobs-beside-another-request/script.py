"""vLLM 0.32.0 on a CPU: with LoRA, two requests for prompt log probabilities end the engine. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig
from vllm import LLM, SamplingParams

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
folder = tempfile.mkdtemp()
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder)
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32"}
llm = LLM(folder, max_model_len=256, enable_lora=True, **options)
prompts = [{"prompt_token_ids": list(range(1, length))} for length in (66, 71)]
try:
    llm.generate(prompts, SamplingParams(max_tokens=4, prompt_logprobs=1, detokenize=False))
    print("both requests are answered, as expected")
except RuntimeError as problem:
    sys.exit(f"two requests end the engine: {problem}; expected: two answers")
