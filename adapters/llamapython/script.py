"""llama-cpp-python in the process of a script: its server's models, and the same without a cache beside them."""

from __future__ import annotations

import importlib
import os
import shutil
import threading
from collections.abc import Iterator
from typing import Any

from coldproof.adapters.llamapython.server import watch
from coldproof.adapters.llamapython.setup import models, of_python
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.gguf_files import write_adapters, write_model
from coldproof.adapters.spec.script.given import ADAPTED, ADAPTERS, FILES, REMADE, SETTINGS, START_SEED

ONE_AT_A_TIME = threading.Lock()  # as the server's lock


class LlamaPython:
    """The models of a server, one of which is open at a time, and those of one without a cache."""

    def __init__(self) -> None:
        FILES.mkdir(exist_ok=True)
        os.chdir(FILES)
        shutil.rmtree(".cache/llama_cache", ignore_errors=True)  # where the states are that the engine keeps in files
        write_model(START_SEED)
        if ADAPTED:
            write_adapters()
        watch(api=of_python(SETTINGS))
        self.warm, self.without = opened(SETTINGS), opened({**SETTINGS, "cache": False})

    def answers(self, sent: Sent, _patience: float = 0) -> Iterator[Event]:
        """Send a request and yield its answer. An adapter's name is that of a model."""
        with ONE_AT_A_TIME:
            yield from stream(self.warm(alias(sent)), sent)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request to the models without a cache, with an empty context."""
        llama = self.without(alias(sent))
        llama.reset()
        return stream(llama, sent)

    def load(self, name: str, content: str, _folder: str) -> None:
        """Do nothing: the server has a model with each adapter."""

    def unload(self, name: str) -> None:
        """Do nothing."""

    def restart(self, _before: str) -> None:
        """Open the models again over the same files, with the usual weights."""
        self.warm.free()
        if REMADE:
            write_model(seed=0)
        self.warm = opened(SETTINGS)

    def ended(self) -> bool:
        """Return False: a crash of the engine ends the script."""
        return False


def opened(fields: dict[str, Any]) -> Any:
    """Return the models of a server: the base model, and one for each adapter."""
    model, settings = (importlib.import_module(f"llama_cpp.server.{name}") for name in ("model", "settings"))
    files = {content: f"adapter-{content}.gguf" for content in ADAPTERS} if ADAPTED else {}
    return model.LlamaProxy([settings.ModelSettings(**one) for one in models(FILES, files, fields)])


def alias(sent: Sent) -> str:
    """Return the name of the model of a request."""
    return (sent["content"] if ADAPTED else None) or "base"


def stream(llama: Any, sent: Sent) -> Iterator[Event]:
    """Yield the events of an answer."""
    options = {"max_tokens": sent["tokens"], "temperature": 0.0, "repeat_penalty": 1.0, "stream": True}
    for event in llama.create_completion(sent["ids"], **options):
        for choice in event["choices"]:
            end = {"end": choice["finish_reason"]} if choice["finish_reason"] else {}
            yield {"ids": choice["token_ids"], **end}
        if "usage" in event:
            yield {"ids": [], "cached": event["usage"]["prompt_tokens_details"]["cached_tokens"]}
