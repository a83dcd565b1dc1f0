"""Give each model a folder of its own in the disk cache, by what its KV depends on.

That is the content of its files, of which the ends tell two of a size apart, and the settings that it is loaded with.
"""

from __future__ import annotations

import hashlib
import os
from typing import Any

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.3.36"
END = 2**20  # bytes of a file that are read from its start, and from its end
FILES = ("model", "lora_path", "lora_base")


def install() -> None:
    """Plant the repair."""
    part("llama_cpp.server.model").own_folder = own_folder
    edit(
        part("llama_cpp.server.model", "LlamaProxy"),
        "load_llama_from_model_settings",
        (
            "cache = llama_cpp.LlamaDiskCache(capacity_bytes=settings.cache_size)",
            "cache = llama_cpp.LlamaDiskCache(own_folder(settings), settings.cache_size)",
        ),
    )


def own_folder(settings: Any) -> str:
    """Return the folder for the states of a model."""
    found = hashlib.sha256(repr(settings.model_dump(exclude={*FILES, "model_alias"})).encode())
    for name in FILES:
        path = getattr(settings, name)
        found.update(f"{name} {path is not None}".encode())
        if path is not None and os.path.isfile(path):
            with open(path, "rb") as file:
                found.update(file.read(END))
                size = file.seek(0, os.SEEK_END)
                file.seek(max(0, size - END))
                found.update(str(size).encode() + file.read())
    return os.path.join(".cache", "llama_cache", found.hexdigest())
