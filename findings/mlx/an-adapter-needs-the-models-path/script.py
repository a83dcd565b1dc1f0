"""mlx-lm 0.32.2: a request's adapter is ignored unless it names the model's path. Exit status 1: the bug."""

from argparse import Namespace

from mlx_lm.server import ModelProvider

loaded = []


class Provider(ModelProvider):  # records what it is asked to load
    def _load(self, *key):
        loaded.append(key)
        self.model_key = key


options = {"model": "/served", "adapter_path": None, "draft_model": None, "pipeline": False}
server = Provider(Namespace(**options, trust_remote_code=False, chat_template=""))
server.load_default()
server.load("default_model", "/the/adapter", "default_model")  # as for a request with an adapter and no model
used = [adapter for _, adapter, _ in loaded[1:]]
print(f"adapters that are loaded for a request that names one: {used}; expected: ['/the/adapter']")
raise SystemExit(used != ["/the/adapter"])
