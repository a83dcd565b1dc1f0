"""Finds out from a case how a script talks to its engine."""

from __future__ import annotations

from pathlib import Path

from coldproof.adapters.registry import CELLS, reproduction_of
from coldproof.adapters.spec.reproduction import RecordedEngine, Reproduction
from coldproof.reports.schema.case import Case

HERE = Path(__file__).parent


def dialect_of(case: Case) -> Reproduction:
    """Return how a script talks to a case's engine."""
    return reproduction_of(case.engine)


def recorded_engine(case: Case) -> RecordedEngine:
    """Return the facts about the engine that a case records."""
    return RecordedEngine(
        name=case.engine,
        version=case.engine_version,
        config=case.engine_config,
        contents=tuple(case.recipes),
        generated_model=uses_generated_model(case),
        cell=CELLS.get(case.cell),
    )


def uses_generated_model(case: Case) -> bool:
    """Return whether the served model was the tiny one that the script can make itself."""
    served = case.engine_config.get("model") or case.engine_config.get("command", "")
    return "/models/" in served and all("seed" in r for r in case.recipes.values())


def uses_sliding_window(case: Case) -> bool:
    """Return whether the case's cell serves the tiny model with sliding windows."""
    return case.cell in CELLS and CELLS[case.cell].sliding_window
