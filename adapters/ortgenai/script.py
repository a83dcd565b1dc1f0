"""ONNX Runtime GenAI in the process of a script: a generator that goes on, and a new one for each cold answer."""

from __future__ import annotations

import importlib
import os
import threading
from collections.abc import Iterator

from coldproof.adapters.common.tiny_model import qwen_tensors, write_model_files
from coldproof.adapters.ortgenai.generator import Continued
from coldproof.adapters.ortgenai.onnx_model import AGAIN, convert, parameters
from coldproof.adapters.spec.script.client import Event, Sent
from coldproof.adapters.spec.script.given import FILES, MODEL, SETTINGS, START_SEED

ONE_AT_A_TIME = threading.Lock()  # a generator has one sequence


class OrtGenai:
    """A model, the generator that goes on, and new ones."""

    def __init__(self) -> None:
        write_model_files(FILES / "model", MODEL, qwen_tensors(MODEL, START_SEED))
        convert(FILES / "model", FILES / "onnx", None, os.environ)
        library = importlib.import_module("onnxruntime_genai")
        model = library.Model(str(FILES / "onnx"))
        made = parameters(model, SETTINGS)
        again = bool(SETTINGS.get(AGAIN))
        self.warm = Continued(lambda: library.Generator(model, made), caching=True, again=again)
        self.new = Continued(lambda: library.Generator(model, made), caching=False)

    def answers(self, sent: Sent, _patience: float = 0) -> Iterator[Event]:
        """Send a request and yield its answer."""
        with ONE_AT_A_TIME:
            yield from stream(self.warm, sent)

    def cold(self, sent: Sent) -> Iterator[Event]:
        """Send a request to a new generator."""
        with ONE_AT_A_TIME:
            yield from stream(self.new, sent)

    def reset(self, *_scope: str) -> None:
        """Rewind to the beginning."""
        self.warm.rewind()

    def ended(self) -> bool:
        """Return False: a crash of the engine ends the script."""
        return False


def stream(continued: Continued, sent: Sent) -> Iterator[Event]:
    """Yield the events of an answer."""
    cached = continued.begin(sent["ids"])
    for _ in range(sent["tokens"]):
        yield {"ids": [continued.next()]}
    yield {"ids": [], "end": "length", "cached": cached}
