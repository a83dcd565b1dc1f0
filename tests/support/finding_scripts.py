"""Runs the hand-made script of a finding as its reader would, and with the finding's repair in the engine."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path

from coldproof import IMPORT_ROOT
from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.repair import Repair

SECONDS = 600
# The repair is planted before the script imports the engine. Other processes of the engine plant it as a plugin.
WITH_REPAIR = """\
import pathlib, runpy, sys
from coldproof.adapters.spec.repair import plant
plant(map(pathlib.Path, sys.argv[2:]))
sys.argv = sys.argv[1:2]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
ENVIRONMENT = {
    "DO_NOT_TRACK": "1",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
}


def run_script(script: Path, folder: Path, repair: Repair | None = None) -> subprocess.CompletedProcess[str]:
    """Run a script in an empty folder and return how it ended. `repair`: planted into the engine that it starts."""
    words = [sys.executable, "-c", WITH_REPAIR, str(script), str(repair.path)] if repair else [sys.executable, script]
    with planted(script, repair, folder / "plugins"):
        environment = {**os.environ, **ENVIRONMENT, "TMPDIR": str(folder)}
    if repair is not None:
        paths = (IMPORT_ROOT, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)))
        environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(paths))
    return subprocess.run(
        words, cwd=folder, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
    )


def planted(script: Path, repair: Repair | None, folder: Path) -> contextlib.AbstractContextManager[None]:
    """Return a context in which engines that start have the repair."""
    support = next(
        (one.repairs for one in ENGINES.values() if one.repairs and one.repairs.findings == script.parts[-3]), None
    )
    if repair is None or support is None:
        return contextlib.nullcontext()
    folder.mkdir(parents=True, exist_ok=True)
    return support.planted([repair.path], folder)
