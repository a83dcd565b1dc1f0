"""vLLM 0.32.0 on a CPU: beside an adapter, the base model answers with the adapter. Exit status 1: the bug."""

import json, os, sys, tempfile

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig, LlamaForCausalLM
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
model, adapter = tempfile.mkdtemp(), tempfile.mkdtemp()
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaForCausalLM(LlamaConfig(vocab_size=128, initializer_range=0.2, **sizes)).save_pretrained(model)
json.dump({"r": 8, "lora_alpha": 8, "target_modules": ["o_proj"]}, open(f"{adapter}/adapter_config.json", "w"))
a, b = (f"base_model.model.model.layers.0.self_attn.o_proj.lora_{x}.weight" for x in "AB")
save_file({a: torch.randn(8, 64), b: torch.randn(64, 8)}, f"{adapter}/adapter_model.safetensors")
options = {"skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32", "enable_prefix_caching": False}
llm = LLM(model, max_model_len=256, enable_lora=True, max_loras=1, **options)
ask, prompt = SamplingParams(temperature=0, max_tokens=8, detokenize=False), {"prompt_token_ids": list(range(1, 66))}
alone = llm.generate(prompt, ask)[0].outputs[0].token_ids
beside = llm.generate([prompt] * 2, ask, lora_request=[None, LoRARequest("tenant", 1, adapter)])[0].outputs[0].token_ids
print(f"the base model's answer beside an adapter's: {beside}; expected, as alone: {alone}")
sys.exit(beside != alone)
