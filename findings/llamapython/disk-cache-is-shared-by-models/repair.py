"""Give each model a folder of its own in the disk cache, by what its KV depends on.

That is the version, the files of the model and of its adapter (path, size and time), and the settings that change KV.
Of a model in several files, the first one stands for all. Callers of LlamaDiskCache have to do the same.
"""

from __future__ import annotations

from coldproof.adapters.spec.repair import edit, part

RELEASES = "==0.3.36"


def install() -> None:
    """Plant the repair."""
    edit(
        part("llama_cpp.server.model", "LlamaProxy"),
        "load_llama_from_model_settings",
        (
            "            cache = llama_cpp.LlamaDiskCache(capacity_bytes=settings.cache_size)\n",
            """            import hashlib
            import os

            files = [one for one in (_model.model_path, settings.lora_path, settings.lora_base) if one]
            stats = [(os.path.realpath(one), os.stat(one).st_size, os.stat(one).st_mtime_ns) for one in files]
            kind = {"type_k", "type_v", "n_ctx", "flash_attn", "kv_overrides"}
            kind |= {name for name in settings.model_fields if name.startswith(("rope_", "yarn_"))}
            own = repr((llama_cpp.__version__, stats, sorted(settings.model_dump(include=kind).items())))
            folder = os.path.join(".cache", "llama_cache", hashlib.sha256(own.encode()).hexdigest())
            cache = llama_cpp.LlamaDiskCache(folder, settings.cache_size)
""",
        ),
    )
