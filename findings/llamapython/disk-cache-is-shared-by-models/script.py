"""llama-cpp-python 0.3.36: a model finds another one's KV in the disk cache. Exit status 1: the bug."""

import os
import tempfile
from pathlib import Path

import llama_cpp
from llama_cpp.server.model import LlamaProxy, ModelSettings

os.chdir(tempfile.mkdtemp())
Path("adapter.gguf").touch()


class Stub:  # in place of a loaded model: only its cache matters
    model_path = ""
    set_cache = lambda self, cache: setattr(self, "cache", cache)


llama_cpp.Llama = lambda **_options: Stub()
opened = LlamaProxy.load_llama_from_model_settings
base = {"model": "model.gguf", "cache": True, "cache_type": "disk", "verbose": False}
opened(ModelSettings(**base)).cache[1, 2, 3] = "a state"
found = (1, 2, 3, 4) in opened(ModelSettings(**base, lora_path="adapter.gguf")).cache
print(f"with an adapter, the disk cache finds the base model's state: {found}; expected: False")
raise SystemExit(found)
