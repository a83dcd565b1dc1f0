"""Start llama-cpp-python's server and count what it computes: `python server.py --config_file FILE [--cold]`.

The server reports no cached tokens and no token ids. Its engine is watched here for both, and nothing that it does is
changed. With `--cold`, each request begins with an empty context. It runs by its path and imports nothing of Coldproof.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any


def serve(arguments: Sequence[str] | None = None) -> None:
    """Serve the models of a configuration file until the process ends. Its disk cache is in the file's folder."""
    parser = argparse.ArgumentParser(prog="llama-cpp-python-server", allow_abbrev=False)
    parser.add_argument("--config_file", type=Path, required=True)
    parser.add_argument("--cold", action="store_true")
    options = parser.parse_args(arguments)
    config = json.loads(options.config_file.read_text())
    os.chdir(options.config_file.parent)
    watch(cold=options.cold, api=config.pop("api", {}))
    application, settings = (importlib.import_module(f"llama_cpp.server.{name}") for name in ("app", "settings"))
    given = settings.ConfigFileSettings.model_validate(config)
    app = application.create_app(
        server_settings=settings.ServerSettings.model_validate(given), model_settings=given.models
    )
    importlib.import_module("uvicorn").run(app, host=given.host, port=given.port, log_level="warning")


def watch(*, cold: bool = False, api: dict[str, Any] | None = None) -> None:
    """Let the engine report the token ids of its answers, and how many tokens of a prompt it did not compute.

    `api`: arguments with which each model is loaded, as Python callers may do: the server has no fields for them.
    """
    engine: Any = importlib.import_module("llama_cpp").Llama
    own_eval, own_generate, own_answer = engine.eval, engine.generate, engine._create_completion
    if api:
        engine.__init__ = functools.partialmethod(engine.__init__, **api)

    def evaluate(self: Any, tokens: Sequence[int]) -> None:
        self.computed = getattr(self, "computed", 0) + len(tokens)
        own_eval(self, tokens)

    def generate(self: Any, tokens: Sequence[int], *rest: Any, **more: Any) -> Iterator[int]:
        self.prompt = list(tokens)
        for token in own_generate(self, tokens, *rest, **more):
            if not self.answer:
                self.cached = len(self.prompt) - self.computed
            self.answer.append(int(token))
            yield token

    def answered(self: Any, *rest: Any, **more: Any) -> Iterator[dict[str, Any]]:
        self.prompt, self.answer, self.computed, self.cached = [], [], 0, None
        if cold:
            self.reset()
        sent = 0
        for part in own_answer(self, *rest, **more):
            for choice in part["choices"]:
                choice |= {"token_ids": self.answer[sent:], "prompt_token_ids": self.prompt}
            sent = len(self.answer)
            yield part
        counts = {"prompt_tokens": len(self.prompt), "completion_tokens": sent}
        yield {"choices": [], "usage": counts | {"prompt_tokens_details": {"cached_tokens": self.cached}}}

    engine.eval, engine.generate, engine._create_completion = evaluate, generate, answered


if __name__ == "__main__":
    serve()
