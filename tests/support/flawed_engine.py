"""A plugin with an engine `scripted` in two cells, and findings from another folder.

COLDPROOF_FLAW names the engine's bug, COLDPROOF_FINDINGS the folder in place of Coldproof's own.
"""

from __future__ import annotations

import os
from pathlib import Path

from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec, StartOptions
from coldproof.harness.case import finding_records
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine

NAME = ScriptedEngine.name
FLAW = InjectedBug[os.environ.get("COLDPROOF_FLAW", "CLEAN")]

finding_records.FOLDER = Path(os.environ["COLDPROOF_FINDINGS"])


def start(setting: StartOptions) -> ScriptedEngine:
    """Start the engine. Without its cache it has no bug."""
    return ScriptedEngine(FLAW if setting.caching else InjectedBug.CLEAN, caching=setting.caching)


MADE = [Cell(name=name, about="scripted", engine=NAME, alike=False) for name in (NAME, f"{NAME}-too")]
CELLS.update({cell.name: cell for cell in MADE})
ENGINES[NAME] = EngineSpec(name=NAME, about="scripted", cells=tuple(MADE), start=start, quick=True)
