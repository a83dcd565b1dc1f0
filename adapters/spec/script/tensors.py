"""The generated model and adapters as tensors, with the standard library alone.

They are those of `adapters/common/tiny_model.py`, which a test shows: each tensor is drawn by its name.
"""

from __future__ import annotations

import array

from coldproof.adapters.common.tiny_model import PRINTABLE, WEIGHT_SPREAD, Tensors, draw
from coldproof.adapters.spec.script.given import ADAPTERS, LAYERS, SHAPES


def model_tensors(seed: int) -> Tensors:
    """Return the tensors of the model. Only printable tokens can be its greedy answers."""
    found: Tensors = {}
    for name, shape in shapes().items():
        drawn = "norm" not in name
        values = draw(f"model {seed} {name}", shape, WEIGHT_SPREAD) if drawn else array.array("f", [1] * shape[0])
        found[name] = shape, values
    (rows, width), head = found["lm_head.weight"]
    for token in set(range(rows)) - set(PRINTABLE):
        head[token * width : (token + 1) * width] = array.array("f", [0] * width)
    return found


def shapes() -> dict[str, tuple[int, ...]]:
    """Return the shape of each tensor of the model."""
    return {name.format(layer): shape for name, shape in SHAPES.items() for layer in range(LAYERS)}


def adapter_tensors(content: str) -> Tensors:
    """Return the tensors of an adapter of all projections."""
    recipe = {"rank": 8, "spread": 0.3, **ADAPTERS[content]}
    found: Tensors = {}
    for name, shape in shapes().items():
        if name.endswith("_proj.weight"):
            for side, size in (("A", (recipe["rank"], shape[1])), ("B", (shape[0], recipe["rank"]))):
                key = f"base_model.model.{name.removesuffix('.weight')}.lora_{side}.weight"
                found[key] = size, draw(f"adapter {recipe['seed']} {recipe['rank']} {key}", size, recipe["spread"])
    return found
