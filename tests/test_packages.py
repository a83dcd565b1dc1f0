"""What a wheel holds beside Python: an installed Coldproof has every template that a checkout has."""

from __future__ import annotations

import subprocess
import tomllib
from pathlib import Path

ROOT = Path(__file__).parent.parent


def test_all_that_is_no_python_is_in_the_wheel() -> None:
    """A pattern that is forgotten is noticed by nobody who works in a checkout."""
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    rooms = ("adapters", "harness", "reports", "suites")
    listed = subprocess.run(["git", "ls-files", *rooms], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    wanted = {ROOT / name for name in listed.splitlines() if not name.endswith(".py")}
    packed = {path for room, patterns in declared.items() for one in patterns for path in (ROOT / room).glob(one)}
    assert wanted
    assert wanted - packed == set()
