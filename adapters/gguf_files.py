"""Writes a tiny model and its LoRA adapters as llama.cpp reads them: GGUF files, in float32.

Only the decoder that Coldproof makes itself (Qwen2-shaped) is translated; another model is given as the GGUF file that
its owner serves. Names follow llama.cpp's `gguf-py/gguf/constants.py`; an adapter's tensors are those of the weights
that they change with `.lora_a` and `.lora_b` behind.
"""

from __future__ import annotations

import importlib
import json
import re
from pathlib import Path
from typing import Any

ARCHITECTURE = "qwen2"
WHOLE = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
PARTS = {
    "q_proj": "attn_q",
    "k_proj": "attn_k",
    "v_proj": "attn_v",
    "o_proj": "attn_output",
    "gate_proj": "ffn_gate",
    "up_proj": "ffn_up",
    "down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
LAYER = re.compile(r"model\.layers\.(\d+)\.(?:\w+\.)?(\w+)\.(weight|bias)")
LORA = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


class NotTranslated(Exception):
    """A model or an adapter that is none of ours; the message says so."""


def write_model(source: Path, target: Path) -> None:
    """Write the model in `source` (config.json, model.safetensors). Raises NotTranslated for one of another shape."""
    config = json.loads((source / "config.json").read_text())
    if config.get("model_type") != ARCHITECTURE:
        raise NotTranslated(
            f"only Qwen2-shaped models are written as GGUF, and {source} is a {config.get('model_type')}"
        )
    file = writer(target)
    file.add_context_length(config["max_position_embeddings"])
    file.add_embedding_length(config["hidden_size"])
    file.add_block_count(config["num_hidden_layers"])
    file.add_feed_forward_length(config["intermediate_size"])
    file.add_head_count(config["num_attention_heads"])
    file.add_head_count_kv(config["num_key_value_heads"])
    file.add_layer_norm_rms_eps(config["rms_norm_eps"])
    file.add_rope_freq_base(config["rope_theta"])
    file.add_vocab_size(config["vocab_size"])
    add_tokenizer(file, config["vocab_size"], end=config["eos_token_id"])
    for name, tensor in tensors(source / "model.safetensors").items():
        file.add_tensor(translated(name), tensor)
    finish(file)


def write_adapter(source: Path, target: Path) -> None:
    """Write the PEFT LoRA adapter in `source`. Raises NotTranslated where it changes what our models have not."""
    config = json.loads((source / "adapter_config.json").read_text())
    file = writer(target)
    file.add_string("general.type", "adapter")
    file.add_string("adapter.type", "lora")
    file.add_float32("adapter.lora.alpha", float(config["lora_alpha"]))
    for name, tensor in tensors(source / "adapter_model.safetensors").items():
        found = LORA.fullmatch(name)
        if found is None:
            raise NotTranslated(f"{source} has a tensor {name!r} that is no LoRA's")
        file.add_tensor(f"{translated(found[1] + '.weight')}.lora_{found[2].lower()}", tensor)
    finish(file)


def add_tokenizer(file: Any, vocabulary: int, *, end: int) -> None:
    """Text for each token id. Requests give ids; but scores are told only of tokens whose text is whole UTF-8."""
    texts = [f"t{number}" for number in range(vocabulary)]
    file.add_tokenizer_model("gpt2")
    file.add_tokenizer_pre("default")
    file.add_token_list(texts)
    file.add_token_types([1] * vocabulary)
    file.add_token_merges(["t 0"])  # an empty list is refused
    file.add_eos_token_id(end)
    file.add_add_bos_token(False)


def translated(name: str) -> str:
    """A tensor's name in GGUF. Raises NotTranslated for one that a Qwen2 decoder has not."""
    found = LAYER.fullmatch(name)
    if name in WHOLE:
        return WHOLE[name]
    if found is None or found[2] not in PARTS:
        raise NotTranslated(f"no name in GGUF is known for {name!r}")
    return f"blk.{found[1]}.{PARTS[found[2]]}.{found[3]}"


def writer(target: Path) -> Any:
    """A GGUF file to be filled."""
    return importlib.import_module("gguf").GGUFWriter(str(target), ARCHITECTURE)


def tensors(file: Path) -> dict[str, Any]:
    """A safetensors file's arrays by name."""
    read: dict[str, Any] = importlib.import_module("safetensors.numpy").load_file(file)
    return read


def finish(file: Any) -> None:
    """Write everything out."""
    file.write_header_to_file()
    file.write_kv_data_to_file()
    file.write_tensors_to_file()
    file.close()
