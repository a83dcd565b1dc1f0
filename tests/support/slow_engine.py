"""A plugin with an engine `slow` that blocks at a chosen moment, as a request to a slow server does.

Each engine has an idle process of its own, so that a test can see whether processes are left behind.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from support.waiting import until

from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.protocol.engine import EngineDied, EngineStartError
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec, StartOptions
from coldproof.adapters.spec.layer import EXACT_LAYER, Layer
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine

# start, calibration, drawing, minimising, confirmation (a fresh engine starts), replaying, controls, layers (an engine
# of two layers, drawing) or unreachable (drawing, and no answer ever comes)
MOMENT = os.environ["COLDPROOF_SLOW_MOMENT"]
BLOCKED = Path(os.environ["COLDPROOF_SLOW_BLOCKED"])  # the file that says that the moment has come
CALM = 40  # answers that the engine under test gives before it blocks
BROKEN = ("minimising", "confirmation", "replaying", "controls")  # moments that come behind a counterexample


@pytest.hookimpl(trylast=True)
def pytest_keyboard_interrupt() -> None:
    """Fail as pytest's output does where its terminal has gone, if the test wants that."""
    if "COLDPROOF_SLOW_FAILS" in os.environ:
        raise OSError("no terminal")


class SlowEngine(ScriptedEngine):
    """A scripted engine that may never answer."""

    def __init__(self, process: EngineProcess, log: Path, *, plant: InjectedBug, caching: bool) -> None:
        super().__init__(plant, caching=caching)
        self.process, self.log, self.answered = process, log, 0

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """Return the honest answer, or block once the moment has come."""
        self.answered += 1
        if MOMENT == "calibration" and not self.caching and self.answered > 5:
            self.block()
        if MOMENT in ("drawing", "layers", "unreachable") and self.caching and self.answered > CALM:
            self.block()
        if MOMENT == "minimising" and self.caching and self.has_happened('"findings":[{'):
            self.block()
        if MOMENT == "replaying" and "fresh" in self.log.name and self.answered > 1:
            self.block()
        if MOMENT == "controls" and self.caching and self.has_happened("running the controls"):
            self.block()
        return super().send(request, on_token)

    def has_happened(self, words: str) -> bool:
        """Return whether an event of the run contains these words."""
        return words in (self.log.parent / "events.ndjson").read_text()

    def block(self) -> None:
        """Wait in another thread for an answer that comes only when the process ends, or never."""
        BLOCKED.touch()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.never).result()
        raise EngineDied("gone")

    def never(self) -> None:
        """Wait until the process ends; forever if the engine is to be unreachable."""
        until(lambda: MOMENT != "unreachable" and not self.process.running())

    def alive(self) -> bool:
        """Return whether the engine's process runs."""
        return self.process.running()

    def stop(self) -> None:
        """End the engine's process."""
        self.process.stop()


def start(setting: StartOptions) -> SlowEngine:
    """Start the process and return its engine, unless the start is the moment to block."""
    idle = [sys.executable, "-c", "import time; time.sleep(3600)", str(BLOCKED)]
    process = EngineProcess(idle, dict(os.environ), setting.log)
    setting.on_process(process)
    if MOMENT == "start" or (MOMENT == "confirmation" and "fresh" in setting.log.name):
        BLOCKED.touch()
        until(lambda: not process.running())
        raise EngineStartError("it ended before it was ready")
    bug = InjectedBug.OVERCOUNT if MOMENT in BROKEN and setting.caching else InjectedBug.CLEAN
    return SlowEngine(process, setting.log, plant=bug, caching=setting.caching)


LAYERS = (Layer(name=EXACT_LAYER, engine="slow-core", traits=(CellTrait.HITS,)),) if MOMENT == "layers" else ()
for name, layers in (("slow", LAYERS), ("slow-core", ())):
    CELLS[name] = Cell(name=name, about="scripted", engine=name)
    ENGINES[name] = EngineSpec(
        name=name, about="scripted", cells=(CELLS[name],), start=start, quick=True, more_layers=layers
    )
