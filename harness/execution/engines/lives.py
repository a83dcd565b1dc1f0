"""Engines that follow one another over one storage folder and one model path, for workloads with restarts."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import TracebackType

from coldproof.adapters.common.model_folder import model_folder
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.generated_models import OTHER_SEED
from coldproof.harness.execution.engines.pool import EnginePlace, EnginePool
from coldproof.harness.execution.models.lora import tiny_model


class EngineLives:
    """Starts one engine after the other; the previous one is stopped first. The files are in `folder`."""

    def __init__(self, pool: EnginePool, cell: Cell, folder: Path, *, caching: bool) -> None:
        self.pool, self.cell, self.folder, self.caching = pool, cell, folder, caching
        self.current: CheckedEngine | None = None

    def next(self, changed: EngineChange) -> CheckedEngine:
        """Stop the current engine and start the next one. Raises EngineStartError."""
        self.stop()
        cell = CELLS[self.cell.twin] if changed is EngineChange.IMPLEMENTATION else self.cell
        changed = changed if changed.of_kv else EngineChange.NOTHING
        place = EnginePlace(model=self.folder / "model", storage=self.folder / "storage", changed=changed)
        self.write_model(place)
        self.current = self.pool.open_engine(cell, caching=self.caching, purpose="life", place=place)
        return self.current

    def write_model(self, place: EnginePlace) -> None:
        """Write the files of the model, or of another one with the same configuration, to the model's path."""
        files = self.pool.files
        source = model_folder(files.model(self.cell))
        if place.changed is EngineChange.WEIGHTS:
            source = tiny_model(files.cache, layers=files.layers(self.cell), seed=OTHER_SEED)
        shutil.rmtree(place.model, ignore_errors=True)
        shutil.copytree(source, place.model)

    def stop(self) -> None:
        """Stop the current engine."""
        if self.current is not None:
            self.pool.close_engine(self.current)
            self.current = None

    def __enter__(self) -> EngineLives:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
        shutil.rmtree(self.folder, ignore_errors=True)
