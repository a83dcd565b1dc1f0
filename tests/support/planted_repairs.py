"""Plants repairs of findings in a process of its own, because they last as long as their process."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.spec.repair import plant


def main(files: list[str]) -> int:
    """Plant the repairs in these files. Raises RepairError for one that does not fit the installed engine."""
    plant(map(Path, files))
    return 0
