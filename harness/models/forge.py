"""Make a tiny real model and LoRA adapters out of a seed, with the standard library alone.

Nothing but this file is needed to make the same bytes again: stand-alone reproducers carry a copy of its source. Hence
no numpy, no safetensors package and no import of ours. Weights are uniform draws from a fixed table, so that they do
not depend on a platform's math library.
"""

from __future__ import annotations

import array
import hashlib
import json
import os
import random
import struct
import sys
from pathlib import Path

SPECIAL = ("<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
# 0.2 instead of the usual 0.02: with small weights a random model's answers hardly depend on its context, and a wrong
# KV block would not show. With 0.2 one changed token changes everything after it.
WEIGHT_SPREAD = 0.2
# An adapter as strong as the weights that it changes: its answers then differ from the base model's from the start.
ADAPTER_SPREAD = 0.3
# Byte values that a random model's greedy answers consist of: then an answer survives the way tokens -> text -> tokens
# that a chat's next turn takes, and can be read in a report.
PRINTABLE = range(32, 127)
# Gemma's attention scores are divided by the square root of this; with normalised queries and keys a small number makes
# attention pick single tokens, so that each of them matters to the answer.
SHARP = 1
TARGETS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
CHAT_TEMPLATE = (
    "{% for message in messages %}{{ '<|' + message['role'] + '|>' + message['content'] + '<|end|>' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|assistant|>' }}{% endif %}"
)


def make_model(folder: Path, *, seed: int = 0, layers: int = 2, hidden: int = 128, max_tokens: int = 4096) -> None:
    """Write a random float32 Qwen2-shaped decoder with a byte-level tokenizer, as a server loads it.

    Its greedy answers are printable ASCII and never end by themselves: see `printable_only`.
    """
    config = {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        **common_config(layers=layers, hidden=hidden, max_tokens=max_tokens),
    }
    write_decoder(
        folder,
        config,
        seed=seed,
        norms=("input_layernorm", "post_attention_layernorm"),
        biased=("q_proj", "k_proj", "v_proj"),
    )


def make_sliding_window_model(
    folder: Path, *, seed: int = 0, layers: int = 6, hidden: int = 128, window: int = 64, max_tokens: int = 4096
) -> None:
    """Write a random float32 Gemma-3-shaped decoder: every sixth layer sees everything, the others `window` tokens.

    An engine keeps the two kinds of layer in different cache groups.
    """
    kinds = ["full_attention" if layer % 6 == 5 else "sliding_attention" for layer in range(layers)]
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "model_type": "gemma3_text",
        "hidden_activation": "gelu_pytorch_tanh",
        "attention_bias": False,
        "layer_types": kinds,
        "sliding_window": window,
        "query_pre_attn_scalar": SHARP,
        "head_dim": hidden // 4,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in sorted(set(kinds))},
        **common_config(layers=layers, hidden=hidden, max_tokens=max_tokens),
    }
    sides = ("post_attention", "pre_feedforward", "post_feedforward")
    write_decoder(
        folder,
        config,
        seed=seed,
        norms=("input_layernorm", *(f"{side}_layernorm" for side in sides)),
        head_norms=("q_norm", "k_norm"),
        norm_weight=0.0,  # Gemma's norms add one
    )


def common_config(*, layers: int, hidden: int, max_tokens: int) -> dict[str, object]:
    """What the config.json of every model of ours says."""
    return {
        "hidden_size": hidden,
        "intermediate_size": hidden * 2,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 256 + len(SPECIAL),
        "max_position_embeddings": max_tokens,
        "rms_norm_eps": 1e-6,
        "tie_word_embeddings": False,
        "torch_dtype": "float32",
        "eos_token_id": 256,
        "bos_token_id": None,
    }


def write_decoder(
    folder: Path,
    config: dict[str, object],
    *,
    seed: int,
    norms: tuple[str, ...],
    head_norms: tuple[str, ...] = (),
    biased: tuple[str, ...] = (),
    norm_weight: float = 1.0,
) -> None:
    """Write the weights of the decoder that `config` describes, its configuration and its tokenizer."""
    vocabulary, hidden = integer(config, "vocab_size"), integer(config, "hidden_size")
    sizes = projection_sizes(config)
    head = sizes["q_proj"][0] // integer(config, "num_attention_heads")
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (vocabulary, hidden),
        "model.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(integer(config, "num_hidden_layers")):
        block = f"model.layers.{layer}"
        shapes |= {f"{block}.{norm}.weight": (hidden,) for norm in norms}
        shapes |= {f"{block}.self_attn.{norm}.weight": (head,) for norm in head_norms}
        for target, (outputs, inputs) in sizes.items():
            shapes[f"{block}.{module_of(target)}.{target}.weight"] = (outputs, inputs)
            if target in biased:
                shapes[f"{block}.{module_of(target)}.{target}.bias"] = (outputs,)
    tensors = {
        name: (
            shape,
            level(shape, norm_weight) if "norm" in name else draw(f"model {seed} {name}", shape, WEIGHT_SPREAD),
        )
        for name, shape in shapes.items()
    }
    printable_only(*tensors["lm_head.weight"])
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "model.safetensors", tensors)
    write_json(folder / "config.json", config)
    write_json(folder / "generation_config.json", {"eos_token_id": 256})
    write_tokenizer(folder)


def module_of(target: str) -> str:
    """The part of a layer that a projection belongs to."""
    return "self_attn" if target in ("q_proj", "k_proj", "v_proj", "o_proj") else "mlp"


def write_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer without merges: token id = byte value, then the special tokens."""
    alphabet = byte_alphabet()
    vocabulary = {alphabet[byte]: byte for byte in range(256)}
    added = [
        {
            "id": 256 + i,
            "content": text,
            "special": True,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
        }
        for i, text in enumerate(SPECIAL)
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    write_json(
        folder / "tokenizer.json",
        {
            "version": "1.0",
            "truncation": None,
            "padding": None,
            "added_tokens": added,
            "normalizer": None,
            "pre_tokenizer": byte_level,
            "post_processor": None,
            "decoder": byte_level,
            "model": {
                "type": "BPE",
                "dropout": None,
                "unk_token": None,
                "continuing_subword_prefix": None,
                "end_of_word_suffix": None,
                "fuse_unk": False,
                "byte_fallback": False,
                "ignore_merges": False,
                "vocab": vocabulary,
                "merges": [],
            },
        },
    )
    write_json(
        folder / "tokenizer_config.json",
        {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "eos_token": SPECIAL[0],
            "pad_token": SPECIAL[0],
            "model_max_length": 1 << 20,
            "clean_up_tokenization_spaces": False,
            "chat_template": CHAT_TEMPLATE,
        },
    )


def byte_alphabet() -> list[str]:
    """GPT-2's printable stand-in for each byte value: printable bytes stand for themselves."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printable]
    stand_in = {byte: chr(byte) for byte in printable} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    return [stand_in[byte] for byte in range(256)]


def make_adapter(
    folder: Path, config: dict[str, object], *, seed: int, rank: int = 8, targets: tuple[str, ...] = TARGETS
) -> None:
    """Write a random PEFT LoRA adapter for the model that `config` (its config.json) describes.

    Raises KeyError when the config lacks the sizes of a Llama- or Qwen2-shaped decoder.
    """
    sizes = projection_sizes(config)
    tensors: dict[str, tuple[tuple[int, ...], array.array[float]]] = {}
    for layer in range(integer(config, "num_hidden_layers")):
        for target in targets:
            outputs, inputs = sizes[target]
            key = f"base_model.model.model.layers.{layer}.{module_of(target)}.{target}"
            for side, shape in (("A", (rank, inputs)), ("B", (outputs, rank))):
                name = f"{key}.lora_{side}.weight"
                tensors[name] = (shape, draw(f"adapter {seed} {rank} {name}", shape, ADAPTER_SPREAD))
    folder.mkdir(parents=True, exist_ok=True)
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    write_json(
        folder / "adapter_config.json",
        {
            "peft_type": "LORA",
            "task_type": "CAUSAL_LM",
            "base_model_name_or_path": None,
            "r": rank,
            "lora_alpha": rank,
            "lora_dropout": 0.0,
            "bias": "none",
            "fan_in_fan_out": False,
            "inference_mode": True,
            "target_modules": list(targets),
        },
    )


def projection_sizes(config: dict[str, object]) -> dict[str, tuple[int, int]]:
    """(outputs, inputs) of each projection that an adapter may target."""
    hidden, heads = integer(config, "hidden_size"), integer(config, "num_attention_heads")
    inner = integer(config, "intermediate_size")
    kv_heads = integer(config, "num_key_value_heads") if "num_key_value_heads" in config else heads
    head = integer(config, "head_dim") if config.get("head_dim") else hidden // heads
    return {
        "q_proj": (heads * head, hidden),
        "k_proj": (kv_heads * head, hidden),
        "v_proj": (kv_heads * head, hidden),
        "o_proj": (hidden, heads * head),
        "gate_proj": (inner, hidden),
        "up_proj": (inner, hidden),
        "down_proj": (hidden, inner),
    }


def integer(config: dict[str, object], key: str) -> int:
    """A size from a config.json, or KeyError."""
    value = config[key]
    if not isinstance(value, int):
        raise KeyError(key)
    return value


def draw(label: str, shape: tuple[int, ...], spread: float) -> array.array[float]:
    """Uniform float32 draws in [-spread * sqrt 3, spread * sqrt 3] (standard deviation `spread`) for a label."""
    source = random.Random(hashlib.sha256(label.encode()).digest())
    table = [spread * 1.7320508 * (2 * i / 1023 - 1) for i in range(1024)]
    count = 1
    for size in shape:
        count *= size
    return array.array("f", source.choices(table, k=count))


def printable_only(shape: tuple[int, ...], rows: array.array[float]) -> None:
    """Zero an output layer's rows of all tokens but the printable ones.

    Their logit is then 0, which never is the largest: for that all 95 printable ones would have to be negative. (At
    temperature 1 about one token in ten is still unprintable, or the end.)
    """
    vocabulary, width = shape
    nothing = array.array("f", bytes(4 * width))
    for token in range(vocabulary):
        if token not in PRINTABLE:
            rows[token * width : (token + 1) * width] = nothing


def level(shape: tuple[int, ...], value: float) -> array.array[float]:
    """A norm's weights."""
    return array.array("f", [value] * shape[0])


def write_safetensors(path: Path, tensors: dict[str, tuple[tuple[int, ...], array.array[float]]]) -> None:
    """Write float32 tensors in the safetensors format: a length, a JSON header, the bytes."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (shape, values) in tensors.items():
        size = 4 * len(values)
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, values in tensors.values():
            if sys.byteorder == "big":
                values.byteswap()
            out.write(values.tobytes())


def write_json(path: Path, value: object) -> None:
    """Write JSON whole: a reader sees the old file or the new one."""
    scratch = path.with_name(path.name + ".new")
    scratch.write_text(json.dumps(value, indent=1, sort_keys=True))
    os.replace(scratch, path)
