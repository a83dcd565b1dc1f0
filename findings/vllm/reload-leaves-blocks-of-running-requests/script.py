"""vLLM 0.32.0: what a request computes after a reload to B is published under A's key. Exit status 1: the bug."""

import json, os, sys, tempfile
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
for folder in (folders := [tempfile.mkdtemp() for _ in "AB"]):
    json.dump({"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}, open(f"{folder}/adapter_config.json", "w"))
    names = [f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight" for x in "AB"]
    save_file({names[0]: torch.randn(8, 64), names[1]: torch.randn(64, 8)}, f"{folder}/adapter_model.safetensors")
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder)
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "dtype": "float32"}
engine = LLM(folder, block_size=32, enable_lora=True, max_model_len=256, **options).llm_engine
ask, prompt = SamplingParams(max_tokens=150, ignore_eos=True, detokenize=False), {"prompt_token_ids": [7] * 40}
engine.add_request("0", prompt, ask, lora_request=LoRARequest("tenant", 1, folders[0]))
for path in folders:  # the request begins with A; then B is loaded under the same name
    engine.add_lora(LoRARequest("tenant", 1, path, load_inplace=True))
    [engine.step() for _ in range(50)]
blocks = len(engine.engine_core.engine_core.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block)
sys.exit(blocks > 2 and f"{blocks} blocks are published under A's key; expected: 2, which A computed")
