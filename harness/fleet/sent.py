"""What nodes elsewhere are sent: the suite's own files and the known issues, and nothing that lies beside them."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from harness.fleet.units import Unit
from harness.qualify.record import digest_of
from harness.qualify.sources import ROOT, files

ALSO = ("conftest.py", "pyproject.toml")
WAIVERS = "fleet-known-issues"  # a folder beside the packages


def gathered(units: Sequence[Unit], folder: Path) -> Path:
    """A copy of them in a folder. Raises OSError."""
    for path in [*files(ROOT), *(ROOT / name for name in ALSO)]:
        copied(path, folder / path.relative_to(ROOT))
    for waivers in {unit.waivers for unit in units if unit.waivers is not None}:
        copied(waivers, folder / sent_name(waivers))
    return folder


def copied(path: Path, to: Path) -> None:
    """One file."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def sent_name(waivers: Path) -> str:
    """Where a node finds a file of known issues: two of one name are two."""
    return f"{WAIVERS}/{digest_of(waivers)[:12]}-{waivers.name}"
