"""A plugin with an engine `slow` that blocks at a chosen moment, as a request to a slow server does.

Each engine has a process of its own, which does nothing: it shows what is left behind.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from coldproof.adapters.common.process import EngineProcess
from coldproof.adapters.protocol.engine import EngineDied, EngineStartError
from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.engine_spec import EngineSpec, StartOptions
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine

MOMENT = os.environ["COLDPROOF_SLOW_MOMENT"]  # start, calibration, drawing, confirmation or unreachable
BLOCKED = Path(os.environ["COLDPROOF_SLOW_BLOCKED"])  # the file that says that the moment has come
CALM = 40  # answers that the engine under test gives before it blocks


class SlowEngine(ScriptedEngine):
    """A scripted engine whose answers may take for ever."""

    def __init__(self, process: EngineProcess, *, plant: InjectedBug, caching: bool) -> None:
        super().__init__(plant, caching=caching)
        self.process, self.answered = process, 0

    def send(self, request: CompletionRequest, on_token: Callable[[int], None]) -> Completion:
        """The honest answer, until the moment has come."""
        self.answered += 1
        if MOMENT == "calibration" and not self.caching and self.answered > 5:
            self.block()
        if MOMENT in ("drawing", "unreachable") and self.caching and self.answered > CALM:
            self.block()
        return super().send(request, on_token)

    def block(self) -> None:
        """Wait in another thread for an answer that comes only when the process ends, or never."""
        BLOCKED.touch()
        with ThreadPoolExecutor(1) as pool:
            pool.submit(self.never).result()
        raise EngineDied("gone")

    def never(self) -> None:
        """Wait."""
        while MOMENT == "unreachable" or self.process.running():
            time.sleep(0.05)

    def alive(self) -> bool:
        """Whether its process runs."""
        return self.process.running()

    def stop(self) -> None:
        """End its process."""
        self.process.stop()


def start(setting: StartOptions) -> SlowEngine:
    """Start the process; its engine comes up unless starting is what blocks."""
    idle = [sys.executable, "-c", "import time; time.sleep(600)", str(BLOCKED)]
    process = EngineProcess(idle, dict(os.environ), setting.log)
    setting.on_process(process)
    if MOMENT == "start" or (MOMENT == "confirmation" and "fresh" in setting.log.name):
        BLOCKED.touch()
        while process.running():
            time.sleep(0.05)
        raise EngineStartError("it ended before it was ready")
    broken = MOMENT == "confirmation" and setting.caching
    return SlowEngine(process, plant=InjectedBug.OVERCOUNT if broken else InjectedBug.CLEAN, caching=setting.caching)


CELL = Cell(name="slow", about="scripted", engine="slow")
ENGINES["slow"] = EngineSpec(name="slow", about="scripted", cells=(CELL,), start=start, quick=True)
CELLS["slow"] = CELL
