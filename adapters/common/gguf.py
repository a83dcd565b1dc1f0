"""Write a tiny model and its LoRA adapters as GGUF files for llama.cpp, with the standard library alone.

Stand-alone reproducers contain these functions and write the same bytes with them. It converts only the decoders that
Coldproof generates (Qwen2- and Gemma-3-shaped). Names follow llama.cpp's `gguf-py/gguf/constants.py`. The name of an
adapter's tensor is the name of the weight that it changes, followed by `.lora_a` or `.lora_b`. The format is described
in `ggml/docs/gguf.md`.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

Read = dict[str, tuple[Sequence[int], bytes]]  # shape and little-endian float32 values by name
Stored = dict[str, tuple[Sequence[int], int, bytes]]  # shape, type and bytes by name
ARCHITECTURES = {"qwen2": "qwen2", "gemma3_text": "gemma3"}  # by config.json's model_type
LLAMA = "llama"  # its adapters are written, not the model itself
ROTATED = (".q_proj.", ".k_proj.")  # projections whose rows a Llama file has in another order
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
GEMMA_PARTS = {
    **PARTS,
    "q_norm": "attn_q_norm",
    "k_norm": "attn_k_norm",
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
LAYER = re.compile(r"model\.layers\.(\d+)\.(?:\w+\.)?(\w+)\.(weight|bias)")
LORA = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")
ALIGNMENT = 32
STRING, ARRAY = 8, 9  # types of metadata values
OF_VALUES: dict[type, tuple[int, str]] = {int: (4, "I"), float: (6, "f"), bool: (7, "?")}  # types, and their formats
OF_LISTS: dict[type, tuple[int, str]] = {int: (5, "i"), float: (6, "f")}
F32, Q4_0 = 0, 2  # types of tensors
GROUP = 32  # numbers that share a scale in Q4_0


class NotTranslated(Exception):
    """A model or an adapter has a form that Coldproof does not generate."""


def write_model(source: Path, target: Path, *, four_bits: bool = False, readable: bool = False) -> None:
    """Write the model in `source` (config.json, model.safetensors). Raises NotTranslated for an unsupported model.

    `four_bits`: with all matrices in 4 bits (Q4_0). `readable`: the text of each printable token is its character.
    """
    config, kind = json.loads((source / "config.json").read_text()), architecture(source)
    tensors = read_tensors(source / "model.safetensors")
    stored = renamed(tensors, kind)
    packed = in_groups(stored) if four_bits else as_they_are(stored)
    texts = token_texts(config["vocab_size"], readable=readable)
    write_gguf(target, {**metadata(config, kind), **texts}, packed)


def metadata(config: dict[str, Any], kind: str) -> dict[str, Any]:
    """Return the key-value pairs of a model that its config.json describes."""
    theta = (config if "rope_theta" in config else config["rope_parameters"]["full_attention"])["rope_theta"]
    values = {
        "general.architecture": kind,
        f"{kind}.context_length": config["max_position_embeddings"],
        f"{kind}.embedding_length": config["hidden_size"],
        f"{kind}.block_count": config["num_hidden_layers"],
        f"{kind}.feed_forward_length": config["intermediate_size"],
        f"{kind}.attention.head_count": config["num_attention_heads"],
        f"{kind}.attention.head_count_kv": config["num_key_value_heads"],
        f"{kind}.attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        f"{kind}.rope.freq_base": float(theta),
        f"{kind}.vocab_size": config["vocab_size"],
        **tokenizer(config["eos_token_id"]),
    }
    if "sliding_window" in config:
        values[f"{kind}.attention.sliding_window"] = config["sliding_window"]
        values |= dict.fromkeys((f"{kind}.attention.key_length", f"{kind}.attention.value_length"), config["head_dim"])
    return values


def renamed(tensors: Read, kind: str) -> Read:
    """Return the tensors of a model by their names in GGUF."""
    written = {}
    for name, (shape, raw) in tensors.items():
        plus_one = kind == "gemma3" and "norm" in name  # Gemma's norms add one; the weights in a GGUF file include it
        written[gguf_name(name, kind)] = shape, add_one(raw) if plus_one else raw
    return written


def architecture(model: Path) -> str:
    """Return the GGUF name of a model's architecture. Raises NotTranslated for an unsupported model."""
    kind = json.loads((model / "config.json").read_text()).get("model_type")
    if kind not in ARCHITECTURES:
        raise NotTranslated(f"{model} is a {kind} model; only {' and '.join(ARCHITECTURES)} can be written as GGUF")
    return ARCHITECTURES[kind]


def write_adapter(source: Path, target: Path, *, model: Path) -> None:
    """Write the PEFT LoRA adapter in `source` for a model. Raises NotTranslated for unsupported tensors."""
    config = json.loads((source / "adapter_config.json").read_text())
    of_model = json.loads((model / "config.json").read_text())
    kind = LLAMA if of_model.get("model_type") == LLAMA else architecture(model)
    tensors = {}
    for name, tensor in read_tensors(source / "adapter_model.safetensors").items():
        if kind == LLAMA and name.endswith("lora_B.weight") and any(part in name for part in ROTATED):
            heads = of_model["num_attention_heads" if ROTATED[0] in name else "num_key_value_heads"]
            tensor = tensor[0], interleaved(*tensor, heads=heads)
        tensors[lora_name(name, kind)] = tensor
    write_gguf(target, adapter_metadata(kind, config["lora_alpha"]), as_they_are(tensors))


def adapter_metadata(kind: str, alpha: float) -> dict[str, Any]:
    """Return the key-value pairs of an adapter."""
    named = {"general.architecture": kind, "general.type": "adapter", "adapter.type": "lora"}
    return {**named, "adapter.lora.alpha": float(alpha)}


def lora_name(name: str, kind: str) -> str:
    """Return the name in GGUF of an adapter's tensor. Raises NotTranslated if it is none."""
    found = LORA.fullmatch(name)
    if found is None:
        raise NotTranslated(f"the tensor {name!r} is not part of a LoRA adapter")
    return f"{gguf_name(found[1] + '.weight', kind)}.lora_{found[2].lower()}"


def tokenizer(end: int) -> dict[str, Any]:
    """Return the metadata of a tokenizer, without its texts."""
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "default",
        "tokenizer.ggml.eos_token_id": end,
        "tokenizer.ggml.add_bos_token": False,
    }


def token_texts(vocabulary: int, *, readable: bool = False) -> dict[str, Any]:
    """Return the metadata with a text for each token id.

    Requests use token ids, but llama.cpp reports scores only of tokens whose text is valid UTF-8. Requests with images
    use text: `readable` gives each printable token its character (\u0120 is GPT-2's space).
    """
    texts, merge = [f"t{number}" for number in range(vocabulary)], "t 0"
    if readable:  # no text has this merge: a byte 0 is \u0100
        texts[32:127], merge = ["\u0120", *map(chr, range(33, 127))], "\u0100 \u0100"
    kinds = [1] * vocabulary
    # llama.cpp refuses an empty list of merges.
    named = {"tokenizer.ggml.tokens": texts, "tokenizer.ggml.token_type": kinds, "tokenizer.ggml.merges": [merge]}
    return dict(named)


def gguf_name(name: str, kind: str) -> str:
    """Return a tensor's name in GGUF. Raises NotTranslated for a tensor that this architecture does not have."""
    found, parts = LAYER.fullmatch(name), GEMMA_PARTS if kind == "gemma3" else PARTS
    if name in WHOLE:
        return WHOLE[name]
    if found is None or found[2] not in parts:
        raise NotTranslated(f"no GGUF name is known for the tensor {name!r}")
    return f"blk.{found[1]}.{parts[found[2]]}.{found[3]}"


def read_tensors(file: Path) -> Read:
    """Return a file's float32 tensors as name -> (shape, little-endian bytes). Raises NotTranslated for other types."""
    raw = file.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8 : 8 + size])
    header.pop("__metadata__", None)
    found: Read = {}
    for name, facts in header.items():
        if facts["dtype"] != "F32":
            raise NotTranslated(f"{file} has the tensor {name!r} with dtype {facts['dtype']}; only F32 is supported")
        start, stop = facts["data_offsets"]
        found[name] = (facts["shape"], raw[8 + size + start : 8 + size + stop])
    return found


def write_gguf(target: Path, values: dict[str, Any], tensors: Mapping[str, tuple[Sequence[int], int, bytes]]) -> None:
    """Write a GGUF file with these key-value pairs and tensors."""
    described, data = b"", b""
    for name, (shape, kind, raw) in tensors.items():
        dimensions = struct.pack(f"<{len(shape)}Q", *reversed(shape))
        described += string(name) + struct.pack("<I", len(shape)) + dimensions + struct.pack("<IQ", kind, len(data))
        data += padded(raw)
    pairs = b"".join(pair(key, value) for key, value in values.items())
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(values)) + pairs + described
    target.write_bytes(padded(head) + data)


def as_they_are(tensors: Mapping[str, tuple[Sequence[int], bytes]]) -> Stored:
    """Return float32 tensors as they are stored."""
    return {name: (shape, F32, raw) for name, (shape, raw) in tensors.items()}


def in_groups(tensors: Mapping[str, tuple[Sequence[int], bytes]]) -> Stored:
    """Return float32 tensors as they are stored, with the matrices in 4 bits."""
    return {
        name: (shape, Q4_0, in_four_bits(raw)) if len(shape) == 2 else (shape, F32, raw)
        for name, (shape, raw) in tensors.items()
    }


def interleaved(shape: Sequence[int], raw: bytes, *, heads: int) -> bytes:
    """Return the rows of a projection in the order of a Llama file (llama.cpp's `LlamaModel.permute`).

    Its rotary embedding turns neighbouring rows of a head together, and that of Hugging Face the halves of a head.
    """
    rows, size = shape[0], len(raw) // shape[0]
    half = rows // heads // 2
    order = [start + part * half + i for start in range(0, rows, 2 * half) for i in range(half) for part in (0, 1)]
    return b"".join(raw[row * size : (row + 1) * size] for row in order)


def in_four_bits(raw: bytes) -> bytes:
    """Return float32 values as Q4_0: for each group a scale in half precision, and its numbers in halves of bytes.

    The scale maps the number of the largest magnitude to -8 (`quantize_row_q4_0_ref` in llama.cpp).
    """
    numbers, found = struct.unpack(f"<{len(raw) // 4}f", raw), []
    for start in range(0, len(numbers), GROUP):
        group = numbers[start : start + GROUP]
        scale = max(group, key=abs) / -8
        whole = [min(15, int(number / scale + 8.5)) if scale else 8 for number in group]
        pairs = zip(whole[: GROUP // 2], whole[GROUP // 2 :], strict=True)
        found.append(struct.pack("<e", scale) + bytes(low | high << 4 for low, high in pairs))
    return b"".join(found)


def add_one(raw: bytes) -> bytes:
    """Return float32 values, as bytes, with 1 added to each."""
    count = len(raw) // 4
    return struct.pack(f"<{count}f", *(number + 1 for number in struct.unpack(f"<{count}f", raw)))


def padded(raw: bytes) -> bytes:
    """Return bytes padded with zeros to a multiple of the alignment."""
    return raw + b"\0" * (-len(raw) % ALIGNMENT)


def string(words: str) -> bytes:
    """Return a string's length and UTF-8 bytes."""
    return struct.pack("<Q", len(words.encode())) + words.encode()


def pair(key: str, value: str | float | list[str] | list[int] | list[float]) -> bytes:
    """Return a key-value pair. Integers are unsigned, but signed in a list."""
    values: Sequence[str | float] = value if isinstance(value, list) else [value]
    if isinstance(values[0], str):
        kind, items = STRING, b"".join(string(str(one)) for one in values)
    else:
        kind, form = (OF_LISTS if isinstance(value, list) else OF_VALUES)[type(values[0])]
        items = struct.pack(f"<{len(values)}{form}", *values)
    head = struct.pack("<IIQ", ARRAY, kind, len(values)) if isinstance(value, list) else struct.pack("<I", kind)
    return string(key) + head + items
