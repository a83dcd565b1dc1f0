"""Plants repairs into engines: vLLM calls `plant_chosen` in each of its processes, as it does with all general plugins.

As with faults, the entry point is in a folder of the run, on the import path of the engines that this run starts and
of no other. So an installed Coldproof never changes other engines.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from coldproof.adapters.spec.repair import plant
from coldproof.adapters.vllm.inproc.process import replace_kernels
from coldproof.adapters.vllm.plugins import register_plugin

FILES, MARKERS = "COLDPROOF_REPAIRS", "COLDPROOF_REPAIR_MARKS"
ENTRY_POINT = "coldproof.adapters.vllm.repairs:plant_chosen"


def plant_chosen() -> None:
    """Plant the repairs whose files the environment names into this process's vLLM, each once.

    Raises RepairError for a repair that does not fit this vLLM. Such an engine does not start.
    """
    if chosen := os.environ.get(FILES):
        replace_kernels()  # vLLM does it too late: after a repair has imported LMCache it fails
        plant(map(Path, chosen.split(os.pathsep)))
        Path(os.environ[MARKERS], f"planted-{os.getpid()}").touch()


@contextlib.contextmanager
def planted(files: Sequence[Path], folder: Path) -> Iterator[None]:
    """Plant repairs into every engine that starts in this context. Their entry point is written to `folder`."""
    variables = {FILES: os.pathsep.join(map(str, files)), MARKERS: str(folder)}
    with register_plugin(folder, "coldproof_repairs", ENTRY_POINT, variables):
        yield
