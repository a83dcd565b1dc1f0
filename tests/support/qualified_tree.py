"""A copy of the project with two suites only and a frozen list of its own, in which a qualification takes seconds."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT, ended

from coldproof.harness.release.run.sources import PACKAGES

SUITES = ("test_cache_salt.py", "test_groups.py")
# On a busy machine, runs with a budget of a second need far more to draw their least examples.
BUDGET, EXTRA, LONG_EXTRA = Path("harness/session/budget.py"), "LEAST_EXTRA = 0.4, 8.0", "LEAST_EXTRA = 0.4, 1200.0"


def make_tree(folder: Path) -> Path:
    """Make the copy, without git, and return its folder."""
    shutil.copytree(ROOT / "src", folder / "src", symlinks=True, ignore=shutil.ignore_patterns("*.egg-info"))
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", "out", "lists"))
    for name in ("conftest.py", "pyproject.toml"):
        shutil.copy(ROOT / name, folder / name)
    for suite in (folder / "suites").glob("test_*.py"):
        if suite.name not in SUITES:
            suite.unlink()
    budget = (folder / BUDGET).read_text()
    assert EXTRA in budget
    (folder / BUDGET).write_text(budget.replace(EXTRA, LONG_EXTRA))
    frozen = python(folder, "-m", "coldproof", "freeze")
    assert frozen.returncode == 0, frozen.stderr
    return folder


def python(tree: Path, *words: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python with the tree's own package, not with the checkout's. `path`: another folder to import from."""
    return ended(
        [sys.executable, *words], folder=tree, PYTHONPATH=os.pathsep.join([str(tree / "src"), *filter(None, [path])])
    )
