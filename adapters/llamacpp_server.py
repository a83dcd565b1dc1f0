"""llama.cpp's own HTTP server in a process of its own: `python llamacpp_server.py -m MODEL.gguf --port P [...]`.

The package xllamacpp holds the whole server as a library; this is the few lines that start it, with those of
`llama-server`'s flags that matter to its caches. Runs by its path, with nothing of ours imported: reproducers carry a
copy of its source.
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
}
SWITCHES = {
    "--context-shift": "ctx_shift",
    "--kv-unified": "kv_unified",
    "--swa-full": "swa_full",
    "--lora-init-without-apply": "lora_init_without_apply",
    "--metrics": "endpoint_metrics",
    "--slots": "endpoint_slots",
}
TYPES = {"f32": "GGML_TYPE_F32", "f16": "GGML_TYPE_F16"}
FLASH = {
    name: f"LLAMA_FLASH_ATTN_TYPE_{kind}" for name, kind in (("on", "ENABLED"), ("off", "DISABLED"), ("auto", "AUTO"))
}


def serve(arguments: Sequence[str]) -> None:
    """Start a server with these flags, and stay."""
    made = argparse.ArgumentParser(prog="llama-server", allow_abbrev=False)
    made.add_argument("--model", "-m", required=True)
    made.add_argument("--lora", action="append", default=[])
    made.add_argument("--slot-save-path", default="")
    made.add_argument("--no-warmup", action="store_true")
    made.add_argument("--cache-type-k", choices=TYPES, default="f16")
    made.add_argument("--cache-type-v", choices=TYPES, default="f16")
    made.add_argument("--flash-attn", choices=FLASH, default="auto")
    made.add_argument("--threads", type=int, default=-1)
    made.add_argument("--threads-batch", type=int, default=-1)
    for flag, field in NUMBERS.items():
        made.add_argument(flag, type=int, dest=field, default=argparse.SUPPRESS)
    for flag, field in SWITCHES.items():
        made.add_argument(flag, action="store_true", dest=field, default=argparse.SUPPRESS)
    given = vars(made.parse_args(arguments))
    library = importlib.import_module("xllamacpp")
    parameters = library.CommonParams()
    parameters.warmup = not given.pop("no_warmup")
    parameters.model.path = given.pop("model")
    parameters.cpuparams.n_threads = given.pop("threads")
    parameters.cpuparams_batch.n_threads = given.pop("threads_batch")
    parameters.cache_type_k = getattr(library.ggml_type, TYPES[given.pop("cache_type_k")])
    parameters.cache_type_v = getattr(library.ggml_type, TYPES[given.pop("cache_type_v")])
    parameters.flash_attn_type = getattr(library.llama_flash_attn_type, FLASH[given.pop("flash_attn")])
    scale = 0.0 if "lora_init_without_apply" in given else 1.0  # llama-server reads the flag so; its library does not
    folder = given.pop("slot_save_path")  # llama-server makes it end with a slash; its library joins it as it is
    parameters.slot_save_path = folder if not folder or folder.endswith("/") else f"{folder}/"
    parameters.lora_adapters = [adapter(library, file, scale) for file in given.pop("lora")]
    for field, value in given.items():
        setattr(parameters, field, value)
    server = library.Server(parameters)
    sys.stdout.write(f"llama.cpp of {library.BUILD_INFO} listens at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def adapter(library: Any, file: str, scale: float) -> Any:
    """An adapter that is there from the start."""
    made = library.CommonAdapterLoraInfo()
    made.path, made.scale = file, scale
    return made


if __name__ == "__main__":
    serve(sys.argv[1:])
