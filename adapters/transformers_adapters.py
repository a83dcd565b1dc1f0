"""LoRA adapters of a Transformers model, by PEFT: many loaded, one switched on at a time.

Every method is for a model that stands still: `ContinuousBatchingManager.pause` is what Transformers has for that.
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from adapters.base import RequestRefused

REFUSALS = (OSError, KeyError, ValueError, RuntimeError, TypeError)  # of files, names and shapes that do not fit

_quiet = threading.Lock()


@contextlib.contextmanager
def quietly() -> Iterator[None]:
    """Without PEFT's warnings of every second adapter. The process has one set of filters, so one engine at a time."""
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class PeftAdapters:
    """Which names are loaded, and which one is on: None is the base model."""

    def __init__(self, model: Any, base_model: str) -> None:
        self.model, self.base_model = model, base_model
        self.names: set[str] = set()
        self.on: str | None = None

    def known(self, name: str) -> str | None:
        """The adapter behind a served name; None for the base model. Raises RequestRefused for another name."""
        if name == self.base_model:
            return None
        if name not in self.names:
            raise RequestRefused(404, f"no adapter is called {name}")
        return name

    def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Load files under a name, `in_place` instead of those that are behind it. What was on stays on.

        Raises RequestRefused, with the name gone where its old files were already.
        """
        if name == self.base_model or (name in self.names and not in_place):
            raise RequestRefused(400, f"there is a model called {name} already")
        if not Path(path, "adapter_config.json").is_file():
            raise RequestRefused(404, f"no adapter in {path}")
        was_on = self.on
        if name in self.names:
            self.delete(name)
        try:
            with quietly():
                told = self.model.load_adapter(path, adapter_name=name, hotswap=False)
        except REFUSALS as problem:
            self.delete(name)
            self.switch(was_on if was_on in self.names else None)
            raise RequestRefused(400, f"{type(problem).__name__}: {problem}") from problem
        self.names.add(name)
        self.switch(was_on)
        missing = [key for key in told.missing_keys if f".{name}." in key]
        if missing:
            self.unload(name)
            raise RequestRefused(400, f"the files in {path} lack {len(missing)} of the adapter's tensors")

    def unload(self, name: str) -> None:
        """Forget a name and its weights. Raises RequestRefused for an unknown one."""
        if name not in self.names:
            raise RequestRefused(404, f"no adapter is called {name}")
        self.delete(name)
        self.switch(None if self.on == name else self.on)

    def delete(self, name: str) -> None:
        """Take the weights out of the model, as far as they are in it."""
        self.names.discard(name)
        with quietly(), contextlib.suppress(ValueError):  # there is no such adapter, or none at all
            self.model.delete_adapter(name)

    def switch(self, name: str | None) -> None:
        """Have this adapter on and no other."""
        self.on = name
        if name is not None:
            self.model.enable_adapters()
            self.model.set_adapter(name)
        elif self.names:
            self.model.disable_adapters()
