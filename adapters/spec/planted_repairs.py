"""Plants repairs into servers that Coldproof starts: a process that plants them and then is the server.

The files stand in the environment of the servers that this run starts, and of no other.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from coldproof.adapters.spec.repair import plant

FILES = "COLDPROOF_REPAIRS"


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


def are_asked_for(environment: Mapping[str, str]) -> bool:
    """Return whether a server with this environment must be started by the process that plants repairs."""
    return bool(environment.get(FILES))


def plant_asked() -> None:
    """Plant the repairs that the environment names. Raises RepairError for one that does not fit."""
    plant(map(Path, os.environ[FILES].split(os.pathsep)))
