"""vLLM 0.32.0, CPU: with float32 weights and --kv-cache-dtype bfloat16, KV is overwritten. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
model = LlamaForCausalLM(LlamaConfig(vocab_size=128, initializer_range=0.5, **sizes))
model.save_pretrained(folder := tempfile.mkdtemp())
options = {"skip_tokenizer_init": True, "enforce_eager": True, "max_model_len": 256, "block_size": 32}
engine = LLM(folder, dtype="float32", kv_cache_dtype="bfloat16", enable_prefix_caching=False, **options)
ask = SamplingParams(max_tokens=8, temperature=0, detokenize=False)
prompts = [{"prompt_token_ids": [first, *range(10, 100)]} for first in range(1, 9)]
alone = [engine.generate(one, ask)[0].outputs[0].token_ids for one in prompts]
batch = [one.outputs[0].token_ids for one in engine.generate(prompts, ask)]
sys.exit(batch != alone and "answers in a batch differ from those alone; expected: the same")
