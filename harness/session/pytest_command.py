"""How a command of Coldproof calls pytest: on our suites, with nothing of the user's working folder.

Invariant: no module of the working folder is imported, no conftest.py is loaded, and no settings of pytest are read but
ours. The working folder is only where files are written. What PYTHONPATH names can be imported, as always in Python.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

PLUGIN = "coldproof.harness.session.plugin"
SUITES_FOLDER = Path(__file__).resolve().parents[2] / "suites"  # found without importing them
SETTINGS = Path(__file__).with_name("pytest.ini")


def suite_words(words: Iterable[str], *, folder: Path | None = None) -> list[str]:
    """Return pytest's arguments for a run of the suites. `folder`: the run's working folder; None: this process's."""
    ours = ["-p", PLUGIN, "-c", str(SETTINGS), f"--rootdir={folder or Path.cwd()}", "--noconftest"]
    return [str(SUITES_FOLDER), *ours, *words]


def pytest_command(words: Iterable[str]) -> list[str]:
    """Return the command of a run of the suites in a process of its own."""
    return [sys.executable, "-P", "-m", "pytest", *suite_words(words)]
