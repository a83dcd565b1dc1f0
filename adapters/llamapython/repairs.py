"""Be llama-cpp-python's server, with repairs: `python -m coldproof.adapters.llamapython.repairs`."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from coldproof.adapters.llamapython import server
from coldproof.adapters.spec.planted_repairs import are_asked_for, plant_asked

SHIPPED = (sys.executable, "-P", str(Path(server.__file__)))
REPAIRED = (sys.executable, "-m", "coldproof.adapters.llamapython.repairs")


def program(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the words that start the server."""
    return REPAIRED if are_asked_for(environment) else SHIPPED


def main() -> None:
    """Plant the repairs that the environment names, and be the server. Raises RepairError for one that does not fit."""
    plant_asked()
    server.serve()


if __name__ == "__main__":
    main()
