"""llama-cpp-python 0.3.36: a model finds another one's KV in the disk cache. Exit status 1: the bug."""

import os
import tempfile

import llama_cpp
from llama_cpp.server.model import LlamaProxy
from llama_cpp.server.settings import ModelSettings


class Stub:  # in place of a loaded model: only its cache matters
    def __init__(self, **_options):
        pass

    def set_cache(self, cache):
        self.cache = cache


llama_cpp.Llama = Stub
os.chdir(tempfile.mkdtemp())
base = {"model": "model.gguf", "cache": True, "cache_type": "disk", "verbose": False}
opened = LlamaProxy.load_llama_from_model_settings
opened(ModelSettings(**base)).cache[1, 2, 3] = "the base model's state"
other = opened(ModelSettings(**base, lora_path="adapter.gguf")).cache
try:
    found = other[1, 2, 3, 4]
except KeyError:
    found = "nothing"
print(f"with an adapter, the disk cache finds: {found}; expected: nothing")
raise SystemExit(found != "nothing")
