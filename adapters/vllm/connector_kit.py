"""The connector kit: a run that tests one KV connector class as a second tier, with the fingerprint worker.

The class is vLLM's plug-in point (`kv_connector` and `kv_connector_module_path` of `--kv-transfer-config`), so that it
needs nothing of Coldproof. Its copies must work between tensors of the CPU.
"""

from __future__ import annotations

import importlib.util
import json
import shlex
from importlib.machinery import PathFinder
from typing import Any

from coldproof.adapters.spec.engine_spec import ConnectorRun
from coldproof.adapters.vllm.cells.cell import FINGERPRINT, IN_PROCESS
from coldproof.adapters.vllm.cells.tiers import CONNECTOR, CONNECTOR_EVENTS
from coldproof.adapters.vllm.kv_tiers import TRANSFER_FLAG

LOADS_FAIL = "failing loads"  # a trait of the cell


def connector_run(
    connector: str, options: dict[str, Any], *, load_failures: str | None, events: bool, engine_args: str
) -> ConnectorRun:
    """Return a run that tests `MODULE:CLASS`, or a connector that vLLM knows by its name.

    `options`: the connector's own, with {folder} for a folder that only one engine uses. `load_failures`: what vLLM
    does with a request whose load fails, `recompute` or `fail`; None: no load fails.
    `events`: the connector publishes what it stores and removes, and the events are tested, too.
    `engine_args`: more flags of vLLM.
    Raises ValueError for a module that cannot be found.
    """
    module, _, name = connector.rpartition(":")
    if module and not importable(module):
        raise ValueError(f"there is no module {module!r}: install it, or name its folder in PYTHONPATH")
    config = {
        "kv_connector": name,
        **({"kv_connector_module_path": module} if module else {}),
        "kv_connector_extra_config": options,
        "kv_load_failure_policy": load_failures or "recompute",
    }
    cells = (CONNECTOR, CONNECTOR_EVENTS) if events else (CONNECTOR,)
    traits = (trait for cell in cells for trait in cell.traits or ())
    tested = tuple(trait for trait in traits if trait != LOADS_FAIL or load_failures is not None)
    return ConnectorRun(
        engine=IN_PROCESS,
        worker=FINGERPRINT,
        cells=tuple(cell.name for cell in cells),
        engine_args=f"{TRANSFER_FLAG} {shlex.quote(json.dumps(config))} {engine_args}".strip(),
        traits=tested,
    )


def importable(module: str) -> bool:
    """Return whether a run can import the module.

    Nothing is imported, not even the packages that contain it: what they import may be in vLLM's way when it starts.
    """
    first, *parts = module.split(".")
    spec = importlib.util.find_spec(first)
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return False
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec is not None
