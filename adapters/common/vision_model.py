"""Generate a tiny real model that takes images, with the standard library alone.

Stand-alone reproducers carry a copy of this file behind those of `tiny_model.py` and `image_model.py`.
"""

from __future__ import annotations

import array
from pathlib import Path

from coldproof.adapters.common.image_model import GRID, NEW_TOKENS, PATCH, VISION, idefics3, write_processor
from coldproof.adapters.common.tiny_model import (
    WEIGHT_SPREAD,
    common_config,
    draw,
    integer,
    module_of,
    projection_sizes,
    write_json,
    write_model_files,
)

Shape = tuple[int, ...]
# Pixels are bytes, and 192 of them make a patch: with a small spread, what they add up to is as large as the rest.
PIXEL_SPREAD = 0.005


def make_vision_model(
    folder: Path, *, seed: int = 0, layers: int = 2, hidden: int = 128, max_tokens: int = 4096
) -> None:
    """Write a random float32 Idefics3: a Llama decoder, a vision tower of two layers, and what connects them.

    Its greedy answers are printable ASCII and never end before `max_tokens`, like those of `make_model`.
    """
    text = {
        "model_type": "llama",
        "hidden_act": "silu",
        "rope_theta": 10000.0,
        "attention_bias": False,
        **common_config(layers=layers, hidden=hidden, max_tokens=max_tokens),
    }
    image_token = integer(text, "vocab_size")
    config = idefics3(text, image_token)
    shapes = decoder_shapes(text, image_token + len(NEW_TOKENS)) | tower_shapes(hidden)
    tensors = {name: (shape, weights(f"seeing model {seed} {name}", name, shape)) for name, shape in shapes.items()}
    write_model_files(folder, config, tensors)
    write_processor(folder, image_token)
    write_json(folder / "config.json", config)


def decoder_shapes(text: dict[str, object], vocabulary: int) -> dict[str, Shape]:
    """Return the name and shape of every tensor of the decoder."""
    hidden, decoder = integer(text, "hidden_size"), "model.text_model"
    found: dict[str, Shape] = {
        f"{decoder}.embed_tokens.weight": (vocabulary, hidden),
        f"{decoder}.norm.weight": (hidden,),
        "lm_head.weight": (vocabulary, hidden),
    }
    for layer in range(integer(text, "num_hidden_layers")):
        block = f"{decoder}.layers.{layer}"
        found |= {f"{block}.{norm}_layernorm.weight": (hidden,) for norm in ("input", "post_attention")}
        for target, size in projection_sizes(text).items():
            found[f"{block}.{module_of(target)}.{target}.weight"] = size
    return found


def tower_shapes(hidden: int) -> dict[str, Shape]:
    """Return the name and shape of every tensor of the vision tower, and of what leads to a decoder of this width."""
    width, inner, tower = integer(VISION, "hidden_size"), integer(VISION, "intermediate_size"), "model.vision_model"
    found: dict[str, Shape] = {
        f"{tower}.embeddings.patch_embedding.weight": (width, 3, PATCH, PATCH),
        f"{tower}.embeddings.patch_embedding.bias": (width,),
        f"{tower}.embeddings.position_embedding.weight": (GRID, width),
        "model.connector.modality_projection.proj.weight": (hidden, width),
    }
    linear = {f"self_attn.{name}": (width, width) for name in ("q_proj", "k_proj", "v_proj", "out_proj")}
    linear |= {"mlp.fc1": (inner, width), "mlp.fc2": (width, inner)}
    norms = [f"{tower}.post_layernorm"]
    for layer in range(integer(VISION, "num_hidden_layers")):
        block = f"{tower}.encoder.layers.{layer}"
        norms += [f"{block}.layer_norm{number}" for number in (1, 2)]
        for name, size in linear.items():
            found |= {f"{block}.{name}.weight": size, f"{block}.{name}.bias": size[:1]}
    return found | {f"{norm}.{part}": (width,) for norm in norms for part in ("weight", "bias")}


def weights(label: str, name: str, shape: Shape) -> array.array[float]:
    """Return the values of a tensor: ones for the weights of norms, else random draws."""
    if "norm" in name and name.endswith("weight"):
        return array.array("f", [1.0] * shape[0])
    return draw(label, shape, PIXEL_SPREAD if "patch_embedding" in name else WEIGHT_SPREAD)
