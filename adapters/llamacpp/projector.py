"""Write a tiny vision tower as a GGUF file for llama.cpp (`--mmproj`), for a decoder of any width.

It is a random CLIP tower with LLaVA's projector ("mlp"): llama.cpp puts no tokens of its own around such an image, and
neither scales nor splits one of SIDE pixels, so that an image takes the positions of its patches. Names follow
llama.cpp's `tools/mtmd/clip-impl.h`.
"""

from __future__ import annotations

import array
from pathlib import Path

from coldproof.adapters.common.gguf import F32, write_gguf
from coldproof.adapters.common.tiny_model import WEIGHT_SPREAD, draw

SIDE, PATCH = 32, 8  # pixels
PATCHES_OF_IMAGE = (SIDE // PATCH) ** 2
WIDTH, INNER, LAYERS, HEADS = 16, 32, 2, 2  # llama.cpp stops before the last layer, as LLaVA does
MIDDLE = [0.5, 0.5, 0.5]  # pixels become numbers between -1 and 1


def write_projector(target: Path, hidden: int) -> None:
    """Write the tower for a decoder of width `hidden`."""
    tower = "clip.vision"
    values = {
        "general.architecture": "clip",
        "general.type": "mmproj",
        "clip.has_vision_encoder": True,
        "clip.projector_type": "mlp",
        "clip.use_gelu": True,
        f"{tower}.image_size": SIDE,
        f"{tower}.patch_size": PATCH,
        f"{tower}.embedding_length": WIDTH,
        f"{tower}.feed_forward_length": INNER,
        f"{tower}.block_count": LAYERS,
        f"{tower}.projection_dim": hidden,
        f"{tower}.attention.head_count": HEADS,
        f"{tower}.attention.layer_norm_epsilon": 1e-5,
        f"{tower}.image_mean": MIDDLE,
        f"{tower}.image_std": MIDDLE,
    }
    write_gguf(target, values, {name: (size, F32, numbers(name, size)) for name, size in tower_shapes(hidden).items()})


def tower_shapes(hidden: int) -> dict[str, tuple[int, ...]]:
    """Return the name and shape of every tensor."""
    found: dict[str, tuple[int, ...]] = {
        "v.patch_embd.weight": (WIDTH, 3, PATCH, PATCH),
        "v.position_embd.weight": (PATCHES_OF_IMAGE, WIDTH),
    }
    linear = {f"attn_{part}": (WIDTH, WIDTH) for part in ("q", "k", "v", "out")}
    linear |= {"ffn_up": (INNER, WIDTH), "ffn_down": (WIDTH, INNER)}
    for layer in range(LAYERS):
        block = f"v.blk.{layer}"
        for name, size in linear.items():
            found |= {f"{block}.{name}.weight": size, f"{block}.{name}.bias": size[:1]}
        found |= {f"{block}.ln{number}.{part}": (WIDTH,) for number in (1, 2) for part in ("weight", "bias")}
    for number, inputs in ((0, WIDTH), (2, hidden)):
        found |= {f"mm.{number}.weight": (hidden, inputs), f"mm.{number}.bias": (hidden,)}
    return found


def numbers(name: str, shape: tuple[int, ...]) -> bytes:
    """Return the values of a tensor, as float32: ones for the weights of norms, else random draws."""
    if ".ln" in name and name.endswith("weight"):
        return array.array("f", [1.0] * shape[0]).tobytes()
    return draw(f"projector {name}", shape, WEIGHT_SPREAD).tobytes()
