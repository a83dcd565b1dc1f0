"""SGLang 0.5.23: a turn with another adapter goes on with the KV of its streaming session. Exit status 1: the bug."""

import sys, tempfile

import sglang, torch
from transformers import LlamaConfig

if __name__ == "__main__":  # the engine's processes import this file
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = LlamaConfig(architectures=["LlamaForCausalLM"], vocab_size=128, **sizes)
    config.save_pretrained(folder := tempfile.mkdtemp())
    options = {"load_format": "dummy", "skip_tokenizer_init": True, "max_total_tokens": 4096, "device": "cpu"}
    options |= {"attention_backend": "torch_native", "lora_backend": "torch_native", "enable_streaming_session": True}
    lora = {"enable_lora": True, "max_lora_rank": 8, "lora_target_modules": ["o_proj"]}
    engine = sglang.Engine(model_path=folder, **lora, **options)
    a, b = (f"base_model.model.model.layers.0.self_attn.o_proj.lora_{x}.weight" for x in "AB")
    adapter = {"peft_type": "LORA", "r": 8, "lora_alpha": 8, "target_modules": ["o_proj"]}
    engine.load_lora_adapter_from_tensors("tenant", {a: torch.randn(8, 64), b: torch.randn(64, 8)}, adapter)
    turn = {"input_ids": [7] * 50, "session_params": {"id": engine.open_session(1000, streaming=True)}}
    engine.generate(sampling_params={"max_new_tokens": 4}, **turn)
    second = engine.generate(sampling_params={"max_new_tokens": 4}, lora_path="tenant", **turn)
    print(f"cached tokens of a turn of another adapter: {second['meta_info']['cached_tokens']}; expected: 0")
    sys.exit(second["meta_info"]["cached_tokens"] > 0)
