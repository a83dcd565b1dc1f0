"""vLLM 0.32.0: the key of an encoded image has the name of its adapter, not the contents. Exit status 1: the bug."""

import json, sys, tempfile
from types import SimpleNamespace

import torch
from safetensors.torch import save_file
from vllm.lora.request import LoRARequest
from vllm.v1.engine.input_processor import InputProcessor

folder, keys = tempfile.mkdtemp(), []
json.dump({"r": 8, "lora_alpha": 8, "target_modules": ["qkv"]}, open(f"{folder}/adapter_config.json", "w"))
processor = SimpleNamespace(lora_config=SimpleNamespace(enable_tower_connector_lora=True))
for _ in range(2):  # the same name and path, with other weights for the tower each time
    save_file({"visual.blocks.0.attn.qkv.lora_A.weight": torch.randn(8, 64)}, f"{folder}/adapter_model.safetensors")
    adapter = LoRARequest("tenant", 1, folder, load_inplace=True)
    keys.append(InputProcessor._get_mm_identifier(processor, "hash-of-the-image", adapter))
print(f"keys of an image before and after a reload: {keys}; expected: two keys")
sys.exit(keys[0] == keys[1])
