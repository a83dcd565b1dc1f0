"""Makes the oracles of a run. They share known answers among all cells with the same cold answers."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.execution.models.contents import ServedFiles
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.oracle import Answers, Question
from coldproof.harness.options import SAME_ENGINE
from coldproof.harness.schema.oracles import OTHER_ENGINE_PREFIX


class OracleFactory:
    """Makes oracles over engines, with a memory of known answers for each kind of cell."""

    def __init__(self, files: ServedFiles) -> None:
        self.files = files
        self.memos: dict[str, Answers] = {}
        self.batched: set[Question] = set()

    def oracle_for(self, name: str, engine: CheckedEngine, cell: Cell) -> EngineOracle:
        """Return an oracle over an engine, with the known answers of this cell."""
        adapters = list(self.files.contents_of(cell).values())
        can_salt = engine.capabilities[Capability.CACHE_SALT].present is True
        itself = name == SAME_ENGINE or (name == "fresh-engine" and can_salt)
        oracle = EngineOracle(name, engine, adapters, memo=self.memo(cell), batched=self.batched, itself=itself)
        oracle.versions = lambda: self.files.versions_of(cell)
        return oracle

    def other_oracle(self, cell: Cell, name: str, engine: CheckedEngine) -> EngineOracle:
        """Return an oracle over another engine. Its answers are valid in every cell with the same model."""
        adapters = list(self.files.contents_of(cell).values())
        memo = self.memos.setdefault(self.across(cell, name), {})
        return EngineOracle(f"{OTHER_ENGINE_PREFIX}{name}", engine, adapters, memo=memo)

    def across(self, cell: Cell, name: str) -> str:
        """Return the key of another engine and its answers. No cell has this name."""
        return f"{OTHER_ENGINE_PREFIX}{name}, {self.files.layers(cell).value}"

    def memo(self, cell: Cell) -> Answers:
        """Return the known answers of a cell, shared with all cells that have the same cold answers."""
        return self.memos.setdefault(self.cell_of_answers(cell).name, {})

    def shares_answers(self, cell: Cell) -> bool:
        """Return whether a cell has the same cold answers as its engine's first cell. With the fingerprint worker, all
        cells have, but not a cell whose requests other cells refuse.
        """
        if cell.own_answers:
            return False
        return (cell.alike and cell.name in CELLS) or self.files.options.fingerprint

    def cell_of_answers(self, cell: Cell) -> Cell:
        """Return the cell whose cold engine answers for this one."""
        return ENGINES[cell.engine].cells[0] if self.shares_answers(cell) else cell
