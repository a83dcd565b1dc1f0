"""Collects the files that are sent to remote nodes: all files of the package, and the known issues."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path

from coldproof import IMPORT_ROOT
from coldproof.harness.fleet.units import Unit
from coldproof.harness.release.run.record import digest_of
from coldproof.harness.release.run.sources import ROOT, source_files

PACKAGE = "coldproof"
ALSO = ("__init__.py", "__main__.py", "py.typed")  # of the package, beside its rooms
WAIVERS = "fleet-known-issues"  # a folder beside the package


def copy_sources(units: Sequence[Unit], folder: Path) -> Path:
    """Copy the package and the units' known issues into a folder, and return it. Raises OSError."""
    for path in source_files(ROOT):
        copy_file(path, folder / PACKAGE / path.relative_to(ROOT))
    for name in ALSO:
        copy_file(IMPORT_ROOT / PACKAGE / name, folder / PACKAGE / name)
    for waivers in {unit.waivers for unit in units if unit.waivers is not None}:
        copy_file(waivers, folder / sent_name(waivers))
    return folder


def copy_file(path: Path, to: Path) -> None:
    """Copy one file; its folder is made if need be."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def sent_name(waivers: Path) -> str:
    """Return where a node finds a file of known issues. Two files of one name get two."""
    return f"{WAIVERS}/{digest_of(waivers)[:12]}-{waivers.name}"
