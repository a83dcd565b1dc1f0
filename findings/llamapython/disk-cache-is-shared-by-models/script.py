"""llama-cpp-python 0.3.36: a model finds another one's KV in the disk cache. Exit status 1: the bug."""

import os
import tempfile

import llama_cpp
from llama_cpp.server.model import LlamaProxy, ModelSettings

os.chdir(tempfile.mkdtemp())
for name in ("model.gguf", "adapter.gguf"):
    open(name, "w").close()


class Stub:  # in place of a loaded model: only its cache matters
    model_path = "model.gguf"
    set_cache = lambda self, cache: setattr(self, "cache", cache)


llama_cpp.Llama = lambda **_options: Stub()
base = {"model": "model.gguf", "cache": True, "cache_type": "disk", "verbose": False}
opened = LlamaProxy.load_llama_from_model_settings
opened(ModelSettings(**base)).cache[1, 2, 3] = "the base model's state"
other = opened(ModelSettings(**base, lora_path="adapter.gguf")).cache
found = "the base model's state" if (1, 2, 3, 4) in other else "nothing"
print(f"with an adapter, the disk cache finds: {found}; expected: nothing")
raise SystemExit(found != "nothing")
