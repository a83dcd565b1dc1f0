"""Start llama.cpp's HTTP server: `python llama_server.py -m MODEL.gguf --port P [...]`.

The package xllamacpp has the whole server as a library. This script starts it with those flags of `llama-server` that
matter to its caches. It runs by its path and imports nothing of Coldproof, because reproducers carry a copy of it.
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
TYPES = {name: f"GGML_TYPE_{name.upper()}" for name in ("f32", "f16", "bf16", "q8_0", "q4_0")}
FLASH = {
    name: f"LLAMA_FLASH_ATTN_TYPE_{kind}" for name, kind in (("on", "ENABLED"), ("off", "DISABLED"), ("auto", "AUTO"))
}


def serve(arguments: Sequence[str]) -> None:
    """Start a server with these flags and run until the process ends."""
    parser = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    parser.add_argument("--model", "-m", required=True)
    parser.add_argument("--lora", action="append", default=[])
    parser.add_argument("--mmproj", default="")
    parser.add_argument("--slot-save-path", default="")
    parser.add_argument("--no-warmup", action="store_true")
    parser.add_argument("--cache-type-k", choices=TYPES, default="f16")
    parser.add_argument("--cache-type-v", choices=TYPES, default="f16")
    parser.add_argument("--flash-attn", choices=FLASH, default="auto")
    parser.add_argument("--threads", type=int, default=-1)
    parser.add_argument("--threads-batch", type=int, default=-1)
    for flag, field in NUMBERS.items():
        parser.add_argument(flag, type=int, dest=field, default=argparse.SUPPRESS)
    for flag, field in SWITCHES.items():
        parser.add_argument(flag, action="store_true", dest=field, default=argparse.SUPPRESS)
    options = vars(parser.parse_args(arguments))
    library = importlib.import_module("xllamacpp")
    parameters = library.CommonParams()
    parameters.warmup = not options.pop("no_warmup")
    parameters.model.path = options.pop("model")
    parameters.mmproj.path = options.pop("mmproj")
    parameters.cpuparams.n_threads = options.pop("threads")
    parameters.cpuparams_batch.n_threads = options.pop("threads_batch")
    parameters.cache_type_k = getattr(library.ggml_type, TYPES[options.pop("cache_type_k")])
    parameters.cache_type_v = getattr(library.ggml_type, TYPES[options.pop("cache_type_v")])
    parameters.flash_attn_type = getattr(library.llama_flash_attn_type, FLASH[options.pop("flash_attn")])
    scale = 0.0 if "lora_init_without_apply" in options else 1.0  # llama-server does this; its library does not
    folder = options.pop("slot_save_path")  # llama-server appends a slash; its library does not
    parameters.slot_save_path = folder if not folder or folder.endswith("/") else f"{folder}/"
    parameters.lora_adapters = [adapter(library, file, scale) for file in options.pop("lora")]
    for field, value in options.items():
        setattr(parameters, field, value)
    server = library.Server(parameters)
    sys.stdout.write(f"llama.cpp of {library.BUILD_INFO} listens at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def adapter(library: Any, file: str, scale: float) -> Any:
    """Return an adapter to register at the start."""
    registered = library.CommonAdapterLoraInfo()
    registered.path, registered.scale = file, scale
    return registered


if __name__ == "__main__":
    serve(sys.argv[1:])
