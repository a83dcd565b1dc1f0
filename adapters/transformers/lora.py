"""LoRA adapters of a Transformers model with PEFT: several are loaded, one is active at a time.

Call the methods only while the generation loop is paused (`ContinuousBatchingManager.pause`).
"""

from __future__ import annotations

import contextlib
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.transformers.weights import wait_for_device

REFUSALS = (OSError, KeyError, ValueError, RuntimeError, TypeError)  # raised for invalid files, names and shapes

_quiet = threading.Lock()


@contextlib.contextmanager
def without_warnings() -> Iterator[None]:
    """Suppress PEFT's warnings. The lock is needed because the warning filters belong to the whole process."""
    with _quiet, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


class PeftAdapters:
    """The names of the loaded adapters. `on`: the active one; None: the base model."""

    def __init__(self, model: Any, base_model: str) -> None:
        self.model, self.base_model = model, base_model
        self.names: set[str] = set()
        self.on: str | None = None

    def known(self, name: str) -> str | None:
        """Return the adapter of a served name; None for the base model. Raises RequestRefused for an unknown name."""
        if name == self.base_model:
            return None
        if name not in self.names:
            raise RequestRefused(404, f"no adapter is called {name}")
        return name

    def load(self, name: str, path: str, *, in_place: bool) -> None:
        """Load an adapter; with `in_place`, replace the one of that name. The active adapter stays active.

        Raises RequestRefused. If a replacement fails, the name is unloaded.
        """
        if name == self.base_model or (name in self.names and not in_place):
            raise RequestRefused(400, f"a model called {name} exists already")
        if not Path(path, "adapter_config.json").is_file():
            raise RequestRefused(404, f"no adapter in {path}")
        was_on = self.on
        if name in self.names:
            self.delete(name)
        try:
            with without_warnings():
                report = self.model.load_adapter(path, adapter_name=name, hotswap=False)
        except REFUSALS as problem:
            self.delete(name)
            self.switch(was_on if was_on in self.names else None)
            raise RequestRefused(400, f"{type(problem).__name__}: {problem}") from problem
        wait_for_device(self.model)
        self.names.add(name)
        self.switch(was_on)
        missing = [key for key in report.missing_keys if f".{name}." in key]
        if missing:
            self.unload(name)
            raise RequestRefused(400, f"the files in {path} lack {len(missing)} of the adapter's tensors")

    def unload(self, name: str) -> None:
        """Unload an adapter. Raises RequestRefused for an unknown name."""
        if name not in self.names:
            raise RequestRefused(404, f"no adapter is called {name}")
        self.delete(name)
        self.switch(None if self.on == name else self.on)

    def delete(self, name: str) -> None:
        """Remove the adapter's weights from the model, if it has them."""
        self.names.discard(name)
        with without_warnings(), contextlib.suppress(ValueError):  # the model does not have this adapter
            self.model.delete_adapter(name)

    def switch(self, name: str | None) -> None:
        """Activate this adapter only; None: the base model."""
        self.on = name
        if name is not None:
            self.model.enable_adapters()
            self.model.set_adapter(name)
        elif self.names:
            self.model.disable_adapters()
