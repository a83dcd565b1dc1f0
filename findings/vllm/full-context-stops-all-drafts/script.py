"""vLLM 0.32.0: near the context limit of one request, no prompt gets the draft model's KV. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=128, initializer_range=0.2, **sizes)
LlamaForCausalLM(config).save_pretrained(folder := tempfile.mkdtemp())
options = {"skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "block_size": 32}
drafts = {"method": "draft_model", "model": folder, "num_speculative_tokens": 3}  # the model drafts for itself
engine = LLM(folder, max_model_len=256, speculative_config=drafts, **options).llm_engine
ask, steps = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, detokenize=False), {}
engine.add_request("long", {"prompt_token_ids": [9] * 254}, SamplingParams(max_tokens=1, detokenize=False))
for salt in ("beside", "beside", "cold"):
    prompt = {"prompt_token_ids": list(range(1, 101)), "cache_salt": salt}
    engine.add_request(salt, prompt, ask)
    steps[salt] = sum(engine.step() is not None for _ in iter(engine.has_unfinished_requests, False))
print(f"steps for 40 tokens after a hit: {steps['beside']}; expected, as in a cold run: {steps['cold']}")
sys.exit(steps["beside"] > steps["cold"])
