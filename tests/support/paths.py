"""The checkout that these tests belong to, commands in it, and options by which no clock decides a verdict."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

from coldproof import IMPORT_ROOT

ROOT = Path(__file__).resolve().parents[2]
PLUGIN_PATH = os.pathsep.join((IMPORT_ROOT, str(ROOT / "tests")))  # plugins are imported before pytest reads settings
# A number of examples ends each trial, and the same ones are drawn each time.
COUNTED = ("-p", "support.counted_budget", "--budget", "1h", "--hypothesis-seed", "5")


def ended(command: Sequence[str], *, folder: Path = ROOT, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, with our packages and these helpers on Python's path."""
    environment = {**os.environ, "PYTHONPATH": PLUGIN_PATH, **variables}
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
