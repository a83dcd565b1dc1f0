"""Start llama.cpp's HTTP server: `python llama_server.py -m MODEL.gguf --port P [...]`.

The package xllamacpp has the whole server as a library. This script starts it with those flags of `llama-server` that
matter to its caches. It runs by its path and imports nothing of Coldproof. Reproducers contain `parameters`.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from collections.abc import Sequence
from typing import Any

NUMBERS = {
    "--port": "port",
    "--ctx-size": "n_ctx",
    "--parallel": "n_parallel",
    "--batch-size": "n_batch",
    "--ubatch-size": "n_ubatch",
    "--cache-ram": "cache_ram_mib",
    "--cache-reuse": "n_cache_reuse",
    "--ctx-checkpoints": "n_ctx_checkpoints",
    "--rope-freq-base": "rope_freq_base",
}
SWITCHES = {
    "--context-shift": "ctx_shift",
    "--kv-unified": "kv_unified",
    "--swa-full": "swa_full",
    "--lora-init-without-apply": "lora_init_without_apply",
    "--metrics": "endpoint_metrics",
    "--slots": "endpoint_slots",
}
TYPES = ("f32", "f16", "bf16", "q8_0", "q4_0")
FLASH = {
    name: f"LLAMA_FLASH_ATTN_TYPE_{kind}" for name, kind in (("on", "ENABLED"), ("off", "DISABLED"), ("auto", "AUTO"))
}
ENUMERATIONS = {"cache_type_k": "ggml_type", "cache_type_v": "ggml_type", "flash_attn_type": "llama_flash_attn_type"}


def serve(arguments: Sequence[str]) -> None:
    """Start a server with these flags and run until the process ends."""
    library = importlib.import_module("xllamacpp")
    server = library.Server(parameters(library, parsed(arguments)))
    sys.stdout.write(f"llama.cpp of {library.BUILD_INFO} listens at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def parsed(arguments: Sequence[str]) -> dict[str, Any]:
    """Return the parameters that these flags set, by the names of their fields."""
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False, argument_default=argparse.SUPPRESS)
    parser.add_argument("--model", "-m", required=True, dest="model.path")
    parser.add_argument("--lora", action="append", dest="lora_adapters")
    parser.add_argument("--mmproj", dest="mmproj.path")
    parser.add_argument("--slot-save-path", dest="slot_save_path")
    parser.add_argument("--no-warmup", action="store_false", dest="warmup")
    parser.add_argument("--cache-type-k", choices=TYPES)
    parser.add_argument("--cache-type-v", choices=TYPES)
    parser.add_argument("--flash-attn", choices=FLASH, dest="flash_attn_type")
    parser.add_argument("--threads", type=int, dest="cpuparams.n_threads")
    parser.add_argument("--threads-batch", type=int, dest="cpuparams_batch.n_threads")
    for flag, field in NUMBERS.items():
        parser.add_argument(flag, type=int, dest=field)
    for flag, field in SWITCHES.items():
        parser.add_argument(flag, action="store_true", dest=field)
    found = vars(parser.parse_args(arguments))
    for name in ENUMERATIONS.keys() & found.keys():
        found[name] = FLASH.get(found[name]) or f"GGML_TYPE_{found[name].upper()}"
    if "slot_save_path" in found:  # llama-server appends a slash; its library does not
        found["slot_save_path"] = found["slot_save_path"].rstrip("/") + "/"
    return found


def parameters(library: Any, settings: dict[str, Any]) -> Any:
    """Return the parameters of a server, from the fields that differ from the usual ones."""
    found = library.CommonParams()
    for name, value in settings.items():
        owner, _, field = name.rpartition(".")
        if name in ENUMERATIONS:
            value = getattr(getattr(library, ENUMERATIONS[name]), value)
        if name == "lora_adapters":
            value = [adapter(library, file, off="lora_init_without_apply" in settings) for file in value]
        setattr(getattr(found, owner) if owner else found, field, value)
    return found


def adapter(library: Any, file: str, *, off: bool) -> Any:
    """Return an adapter to register at the start. `off`: requests switch it on; llama-server does this by a flag."""
    registered = library.CommonAdapterLoraInfo()
    registered.path, registered.scale = file, 0.0 if off else 1.0
    return registered


if __name__ == "__main__":
    serve(sys.argv[1:])
