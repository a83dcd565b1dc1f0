"""What vLLM keeps in global variables although it belongs to one engine: a process of its own has one.

Without this, the second engine in this process would use the connector of the first one, and a cold engine would have a
connector. An engine with another hash algorithm would change the root of the first one's hashes: what that one has
cached would not be hit again, and its events would have hashes that do not follow from their fields.
On a GPU, the first one would compute in the scratch memory of the second one, which may be too small for it.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator
from typing import Any

CONNECTOR = ("vllm.distributed.kv_transfer.kv_transfer_state", "_KV_CONNECTOR_AGENT")
ROOT_HASH = ("vllm.v1.core.kv_cache_utils", "NONE_HASH")  # not set before the first engine starts
SCRATCH = ("vllm.v1.worker.workspace", "_manager")
ABSENT = object()


class OwnGlobals:
    """The values of one engine. Before its start it has no connector and no scratch memory, and takes the root that its
    start computes.
    """

    def __init__(self) -> None:
        self.values: dict[tuple[str, str], Any] = {CONNECTOR: None, ROOT_HASH: ABSENT, SCRATCH: None}

    @contextlib.contextmanager
    def active(self) -> Iterator[None]:
        """Put them in place. At the end, keep what they are then, and restore the previous ones."""
        previous = {place: read(place) for place in self.values}
        write(self.values)
        try:
            yield
        finally:
            self.values = {place: read(place) for place in self.values}
            write(previous)


def read(place: tuple[str, str]) -> Any:
    """Return the value of a module's variable; ABSENT if it has none yet."""
    module, name = place
    return getattr(importlib.import_module(module), name, ABSENT)


def write(values: dict[tuple[str, str], Any]) -> None:
    """Set variables of modules. One that was absent is left as it is."""
    for (module, name), value in values.items():
        if value is not ABSENT:
            setattr(importlib.import_module(module), name, value)
