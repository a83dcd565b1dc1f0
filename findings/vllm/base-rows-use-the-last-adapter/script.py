"""vLLM 0.32.0 on a CPU: beside an adapter's request, a base request is computed with the adapter. Exit status 1: the bug."""

import json, os, sys, tempfile

import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
folder = tempfile.mkdtemp()
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder)
json.dump({"r": 8, "lora_alpha": 64, "target_modules": ["v_proj"]}, open(f"{folder}/adapter_config.json", "w"))
a, b = (f"base_model.model.model.layers.0.self_attn.v_proj.lora_{x}.weight" for x in "AB")
save_file({a: torch.randn(8, 64), b: torch.randn(64, 8)}, f"{folder}/adapter_model.safetensors")
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32"}
llm = LLM(folder, max_model_len=256, enable_prefix_caching=False, enable_lora=True, max_loras=1, **options)
params, prompt = SamplingParams(max_tokens=8, detokenize=False), {"prompt_token_ids": list(range(1, 66))}
alone = llm.generate(prompt, params)[0].outputs[0].token_ids
beside = llm.generate([prompt, prompt], params, lora_request=[None, LoRARequest("tenant", 1, folder)])[0].outputs[0].token_ids
print(f"base model beside an adapter: {beside}; expected, as alone: {alone}")
sys.exit(beside != alone)
