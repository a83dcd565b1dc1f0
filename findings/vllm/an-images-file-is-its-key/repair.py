"""Hash the pixels of an image that came as a file, as those of any other image.

Files of several formats have the same pixels, and the model sees the pixels.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""
    edit(
        part("vllm.multimodal.hasher", "MultiModalHasher"),
        "serialize_item",
        (
            'return cls.iter_item_to_bytes("image", obj.original_bytes)',
            "return cls.serialize_item(obj.media)",
        ),
    )
