"""llama.cpp's own HTTP server in a process of its own: `python llamacpp_server.py MODEL.gguf --port P [...]`.

The package xllamacpp holds the whole server as a library; this is the few lines that start it. Runs by its path, with
nothing of ours imported, so that a reproducer can carry a copy. `--set NAME=VALUE` sets a field of its parameters.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
from typing import Any

EXACT = "GGML_TYPE_F32"  # llama.cpp's default, half precision, gives other tokens now and then without any cache


def main() -> None:
    """Start and stay."""
    made = argparse.ArgumentParser()
    made.add_argument("model")
    made.add_argument("--port", type=int, required=True)
    made.add_argument("--lora", action="append", default=[], metavar="FILE.gguf")
    made.add_argument("--set", action="append", default=[], metavar="NAME=VALUE", dest="fields")
    given = made.parse_args()
    library = importlib.import_module("xllamacpp")
    parameters = library.CommonParams()
    parameters.model.path = given.model
    parameters.port = given.port
    parameters.endpoint_metrics = parameters.endpoint_slots = True
    parameters.warmup = False
    parameters.cpuparams.n_threads = parameters.cpuparams_batch.n_threads = 1
    parameters.cache_type_k = parameters.cache_type_v = getattr(library.ggml_type, EXACT)
    parameters.flash_attn_type = library.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    parameters.lora_adapters = [adapter(library, file) for file in given.lora]
    parameters.lora_init_without_apply = True  # each request says which of them it wants
    for field in given.fields:
        name, _, value = field.partition("=")
        setattr(parameters, name, type(getattr(parameters, name))(int(value)))
    server = library.Server(parameters)
    sys.stdout.write(f"listening at {server.listening_address}\n")
    sys.stdout.flush()
    while True:
        time.sleep(3600)


def adapter(library: Any, file: str) -> Any:
    """An adapter that is there from the start."""
    made = library.CommonAdapterLoraInfo()
    made.path, made.scale = file, 0.0
    return made


if __name__ == "__main__":
    main()
