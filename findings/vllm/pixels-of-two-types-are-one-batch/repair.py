"""Encode images whose tensors have different types in batches of their own.

A batch has the type of its first image: the others are rounded to it, or cannot be cast and end the engine.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.multimodal.utils"),
        "_can_batch_mm_items",
        (
            "        if (type(left_field) is not type(right_field)) or (",
            '        types = [getattr(elem.data, "dtype", None) for elem in (left_elem, right_elem)]\n'
            "        if types[0] != types[1] or (type(left_field) is not type(right_field)) or (",
        ),
    )
