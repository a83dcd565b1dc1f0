"""Plants repairs into mlx-lm's server: a process that plants them and then is the server.

The files stand in the environment of the servers that this run starts, and of no other.
"""

from __future__ import annotations

import contextlib
import importlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coldproof.adapters.spec.repair import plant

FILES = "COLDPROOF_REPAIRS"
SHIPPED, REPAIRED = ("mlx_lm", "server"), ("coldproof.adapters.mlx.repairs",)  # modules to run, with their first word


@contextlib.contextmanager
def planted(files: Sequence[Path], _folder: Path) -> Iterator[None]:
    """Plant repairs into every server that starts in this context."""
    before = os.environ.get(FILES)
    os.environ[FILES] = os.pathsep.join(map(str, files))
    try:
        yield
    finally:
        os.environ.pop(FILES)
        if before is not None:
            os.environ[FILES] = before


def program(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what `python -m` runs as the server."""
    return REPAIRED if environment.get(FILES) else SHIPPED


def main() -> None:
    """Plant the repairs that the environment names, and be the server. Raises RepairError for one that does not fit."""
    plant(map(Path, os.environ[FILES].split(os.pathsep)))
    importlib.import_module("mlx_lm.server").main()


if __name__ == "__main__":
    main()
