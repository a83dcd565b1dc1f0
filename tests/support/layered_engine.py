"""A plugin with an engine `layered` of two layers. The exact one has a planted bug if COLDPROOF_LAYERED_BUG is set."""

from __future__ import annotations

import os

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec, StartOptions
from coldproof.adapters.spec.layer import EXACT_LAYER, Layer
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine

# bug: planted in the exact layer; bugs: in both; start: the server does not start
MOMENT = os.environ.get("COLDPROOF_LAYERED", "")


def start_core(setting: StartOptions) -> ScriptedEngine:
    """Start the engine of the exact layer."""
    broken = MOMENT in ("bug", "bugs") and setting.caching
    return ScriptedEngine(InjectedBug.OVERCOUNT if broken else InjectedBug.CLEAN, caching=setting.caching)


def start_server(setting: StartOptions) -> ScriptedEngine:
    """Start the engine of the server layer. Raises EngineStartError."""
    if MOMENT == "start":
        raise EngineStartError("no port is free")
    broken = MOMENT == "bugs" and setting.caching
    return ScriptedEngine(InjectedBug.OVERCOUNT if broken else InjectedBug.CLEAN, caching=setting.caching)


for name, start, layers in (
    ("layered", start_server, (Layer(name=EXACT_LAYER, engine="layered-core", traits=(CellTrait.HITS,)),)),
    ("layered-core", start_core, ()),
):
    CELLS[name] = Cell(name=name, about="scripted", engine=name)
    ENGINES[name] = EngineSpec(
        name=name, about="scripted", cells=(CELLS[name],), start=start, quick=True, more_layers=layers
    )
