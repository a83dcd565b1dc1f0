"""Be mlx-lm's server, with repairs: `python -m coldproof.adapters.mlx.repairs`."""

from __future__ import annotations

import importlib
from collections.abc import Mapping

from coldproof.adapters.spec.planted_repairs import are_asked_for, plant_asked

SHIPPED, REPAIRED = ("mlx_lm", "server"), ("coldproof.adapters.mlx.repairs",)  # modules to run, with their first word


def program(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return what `python -m` runs as the server."""
    return REPAIRED if are_asked_for(environment) else SHIPPED


def main() -> None:
    """Plant the repairs that the environment names, and be the server. Raises RepairError for one that does not fit."""
    plant_asked()
    importlib.import_module("mlx_lm.server").main()


if __name__ == "__main__":
    main()
