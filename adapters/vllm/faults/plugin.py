"""Injects a fault into an engine: vLLM calls `inject_chosen` in each of its processes, as it does with all general
plugins.

The entry point is registered in a folder of the run, on the import path of the engines that this run starts and of no
other. So an installed Coldproof never changes other engines.
"""

from __future__ import annotations

import builtins
import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

from coldproof.adapters.vllm.faults.patching import MARKERS_VARIABLE, create_marker
from coldproof.adapters.vllm.plugins import register_plugin

FAULT_VARIABLE = "COLDPROOF_FAULT"
ENTRY_POINT = "coldproof.adapters.vllm.faults.plugin:inject_chosen"
_injected: list[str] = []


def inject_chosen() -> None:
    """Inject the fault that the environment names into this process's vLLM, once.

    Raises KeyError for an unknown fault, and the patch's own error if it does not fit this vLLM. Such an engine does
    not start.
    """
    name = os.environ.get(FAULT_VARIABLE)
    if name and name not in _injected:
        from coldproof.adapters.vllm.faults.catalogue import FAULTS  # not needed by an engine without a fault

        FAULTS[name].plant(builtins)  # its `setattr` restores nothing: the fault lasts as long as the engine process
        _injected.append(name)
        create_marker("planted")


@contextlib.contextmanager
def injected(name: str, folder: Path) -> Iterator[None]:
    """Inject a fault into every engine that starts in this context; their marker files are created in `folder`."""
    with register_plugin(folder, "coldproof_fault", ENTRY_POINT, {FAULT_VARIABLE: name, MARKERS_VARIABLE: str(folder)}):
        yield


def count_markers(folder: Path, kind: str) -> int:
    """Return the number of processes that created a marker file of a kind."""
    return len(list(folder.glob(f"{kind}-*")))
