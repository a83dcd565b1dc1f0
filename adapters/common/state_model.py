"""Generate a tiny real model with states beside attention, with the standard library alone.

Stand-alone reproducers carry a copy of this file behind that of `tiny_model.py`.
"""

from __future__ import annotations

import array
from pathlib import Path

from coldproof.adapters.common.tiny_model import WEIGHT_SPREAD, common_config, draw, integer, write_model_files

# The slowest of the heads forgets half of its state in about a thousand tokens, the fastest in a few: a wrong state at
# a block's end shows in the answer, however far behind it the prompt ends.
SLOWEST, FASTEST = -7.0, 0.0


def make_state_model(
    folder: Path, *, seed: int = 0, layers: int = 2, hidden: int = 128, max_tokens: int = 4096
) -> None:
    """Write a random float32 decoder in the shape of Granite 4: Mamba-2 layers and attention in turn, no experts.

    Its greedy answers are printable ASCII and never end before `max_tokens`, like those of `make_model`.
    """
    kinds = ["attention" if layer % 2 else "mamba" for layer in range(layers)]
    config = {
        "architectures": ["GraniteMoeHybridForCausalLM"],
        "model_type": "granitemoehybrid",
        "layer_types": kinds,
        "hidden_act": "silu",
        "attention_bias": False,
        "position_embedding_type": "rope",
        "rope_theta": 10000.0,
        "num_local_experts": 0,
        "num_experts_per_tok": 0,
        "shared_intermediate_size": hidden * 2,
        "mamba_n_heads": 8,
        "mamba_d_head": hidden * 2 // 8,
        "mamba_n_groups": 1,
        "mamba_d_state": 16,
        "mamba_d_conv": 4,
        "mamba_expand": 2,
        "mamba_chunk_size": 32,
        "mamba_conv_bias": True,
        "mamba_proj_bias": False,
        **common_config(layers=layers, hidden=hidden, max_tokens=max_tokens),
    }
    tensors = {name: (shape, weights(f"state model {seed} {name}", name, shape)) for name, shape in shapes(config)}
    write_model_files(folder, config, tensors)


def shapes(config: dict[str, object]) -> list[tuple[str, tuple[int, ...]]]:
    """Return the name and shape of every tensor of the model that `config` describes."""
    vocabulary, hidden, inner = (integer(config, k) for k in ("vocab_size", "hidden_size", "shared_intermediate_size"))
    heads, width, conv = (integer(config, f"mamba_{k}") for k in ("n_heads", "d_head", "d_conv"))
    state = integer(config, "mamba_d_state") * integer(config, "mamba_n_groups")
    kv = hidden // integer(config, "num_attention_heads") * integer(config, "num_key_value_heads")
    mixed = heads * width
    found: list[tuple[str, tuple[int, ...]]] = [
        ("model.embed_tokens.weight", (vocabulary, hidden)),
        ("model.norm.weight", (hidden,)),
        ("lm_head.weight", (vocabulary, hidden)),
    ]
    kinds = config["layer_types"]
    assert isinstance(kinds, list)
    for layer, kind in enumerate(kinds):
        block = f"model.layers.{layer}"
        found += [(f"{block}.{norm}_layernorm.weight", (hidden,)) for norm in ("input", "post_attention")]
        found.append((f"{block}.shared_mlp.input_linear.weight", (2 * inner, hidden)))
        found.append((f"{block}.shared_mlp.output_linear.weight", (hidden, inner)))
        if kind == "mamba":
            found += [(f"{block}.mamba.{name}", (heads,)) for name in ("dt_bias", "A_log", "D")]
            found.append((f"{block}.mamba.conv1d.weight", (mixed + 2 * state, 1, conv)))
            found.append((f"{block}.mamba.conv1d.bias", (mixed + 2 * state,)))
            found.append((f"{block}.mamba.in_proj.weight", (2 * mixed + 2 * state + heads, hidden)))
            found.append((f"{block}.mamba.norm.weight", (mixed,)))
            found.append((f"{block}.mamba.out_proj.weight", (hidden, mixed)))
        else:
            sizes = {"q_proj": (hidden, hidden), "k_proj": (kv, hidden), "v_proj": (kv, hidden)}
            found += [(f"{block}.self_attn.{name}.weight", size) for name, size in sizes.items()]
            found.append((f"{block}.self_attn.o_proj.weight", (hidden, hidden)))
    return found


def weights(label: str, name: str, shape: tuple[int, ...]) -> array.array[float]:
    """Return the values of a tensor: ones for norms, decays of the heads from slow to fast, else random draws."""
    if "norm" in name:
        return array.array("f", [1.0] * shape[0])
    if name.endswith("A_log"):
        step = (FASTEST - SLOWEST) / (shape[0] - 1)
        return array.array("f", [SLOWEST + step * head for head in range(shape[0])])
    return draw(label, shape, WEIGHT_SPREAD)
