"""Fleets without engines: matrices, runs that write a small bundle, and a Ray that returns prepared results."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import psutil
from support import bundles
from support.paths import ROOT
from support.waiting import until

from coldproof import IMPORT_ROOT
from coldproof.harness.fleet.matrix import Machine, Matrix, MatrixRun, Unit, units_of
from coldproof.harness.fleet.merge.unit_report import Fleet, Part, read_part
from coldproof.harness.fleet.node import Ended, pack
from coldproof.harness.fleet.store import Record, Store
from coldproof.harness.option_table import option_value
from coldproof.reports.files.own_folder import OwnFolder

SOURCES = "s" * 64
CELLS = {"llamacpp": "one", "llamacpp-one-slot": "two"}  # an engine's cells, and those of the bundles' small suite
GO = "go"


def matrix(*runs: MatrixRun, machines: Sequence[str] = ("cpu",)) -> Matrix:
    """Return a matrix of these runs, or of one run of two cells, on these kinds of machines."""
    one = MatrixRun(engine="llamacpp", machines=tuple(machines), cells=tuple(CELLS))
    return Matrix(machine=tuple(Machine(name=name) for name in machines), run=runs or (one,))


def units(given: Matrix | None = None) -> list[Unit]:
    """Return the units of a matrix."""
    return units_of(given or matrix(), ROOT)


def report(folder: Path, unit: Unit) -> Path:
    """Write the report that a run of the small suite in a unit's cell leaves, and return its folder."""
    return bundles.copy_of(written(CELLS[unit.cell]), folder)


@functools.cache
def written(cell: str) -> Path:
    """Return the report of a run in this cell of the small suite, which is written once. No test changes it."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder)
    return bundles.write(folder / "report", places=[place for place in bundles.PLACES if place.cell == cell])


def ended(folder: Path, **changes: Any) -> Ended:
    """Return how a run ended that left this folder on its node."""
    fields: dict[str, Any] = {"code": 0, "files": pack(folder), "log": "it said this\n", "seconds": 60.0, "node": "n1"}
    return Ended(**{**fields, **changes})


class RayFailed(Exception):
    """Stands for Ray's own exceptions."""


class ScriptedRay:
    """Ray on one node, whose tasks end in the order in which they were started, with prepared results."""

    exceptions = SimpleNamespace(RayError=RayFailed)

    def __init__(self, results: dict[str, Ended | Exception]) -> None:
        self.results = results
        self.options: dict[str, dict[str, Any]] = {}  # of each started task, by its name
        self.arguments: dict[str, tuple[Any, ...]] = {}
        self.cancelled: list[str] = []
        self.most = 0  # tasks at a time
        self.lost: list[str] = []  # nodes that are found to be lost at the next look

    def remote(self, function: object) -> ScriptedTask:
        """Return the task of a function."""
        return ScriptedTask(self)

    def nodes(self) -> list[dict[str, Any]]:
        """Return one node that lives, and the lost ones."""
        gone = [{"NodeID": name, "Alive": False, "Resources": {}} for name in self.lost]
        return [{"NodeID": "n1", "Alive": True, "Resources": {"CPU": 8.0}}, *gone]

    def wait(self, tasks: list[str], *, num_returns: int = 1, timeout: float) -> tuple[list[str], list[str]]:
        """Return the oldest task as ended. Raises KeyboardInterrupt if it has no result, as at Ctrl-C."""
        self.most = max(self.most, len(tasks))
        if self.cancelled:
            return tasks, []
        if tasks[0] not in self.results:
            raise KeyboardInterrupt
        return tasks[:1], tasks[1:]

    def get(self, task: str) -> dict[str, Any]:
        """Return the fields of a task's result."""
        found = self.results[task]
        if isinstance(found, Exception):
            raise found
        return vars(found)

    def cancel(self, task: str, *, force: bool) -> None:
        """Cancel a task."""
        self.cancelled.append(task)


class ScriptedTask:
    """A task that is not started yet."""

    def __init__(self, ray: ScriptedRay) -> None:
        self.ray, self.name = ray, ""

    def options(self, *, name: str, **options: Any) -> ScriptedTask:
        """Set its options."""
        self.name = name
        self.ray.options[name] = options
        return self

    def remote(self, *arguments: Any) -> str:
        """Start it, and return its name as the reference."""
        self.ray.arguments[self.name] = arguments
        return self.name


def store_in(folder: Path) -> Store:
    """Return the store of a new fleet in this folder."""
    OwnFolder.begin(folder).close()
    return Store(folder)


def record(unit: Unit, **changes: Any) -> Record:
    """Return the record of a unit's run that ended well."""
    made = Record(unit=unit.id, digest=unit.digest(SOURCES), exit_code=0, began=1000.0, seconds=60.0, node="n1")
    return msgspec.structs.replace(made, **changes)


def done(store: Store, unit: Unit, **changes: Any) -> Part:
    """Store the report and the record of a unit that has run, and return its part."""
    report(store.report(unit.id), unit)
    store.write(record(unit, **changes))
    return part(store, unit)


def part(store: Store, unit: Unit) -> Part:
    """Return a unit's part of the merged result."""
    return read_part(unit, store.record(unit, SOURCES), store.report(unit.id))


def fleet(**changes: Any) -> Fleet:
    """Return the description of the fleet that the parts belong to."""
    fields: dict[str, Any] = {
        "command": "coldproof fleet matrix.toml",
        "version": "9.9",
        "started": "2026-03-01T00:00:00+00:00",
        "at": 990.0,
        "environment": {},
    }
    return Fleet(**{**fields, **changes})


PATHS = [str(IMPORT_ROOT), str(ROOT / "tests")]


def fake_python(folder: Path) -> Path:
    """Write a script that replaces a run's Python: `-m coldproof run ...` runs no suites and leaves a small bundle."""
    script = folder / "python"
    script.write_text(
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {PATHS!r}\n"
        f"from support.fleets import fake_run\nfake_run(sys.argv[1:], {str(folder)!r})\n"
    )
    script.chmod(0o755)
    return script


def fake_run(words: list[str], folder: str) -> None:
    """Write the events of a run but not its end, wait at the gate, then end. A test can kill the run at the gate."""
    cell, report = option_value("--cells", words), option_value("--report-dir", words)
    assert cell is not None
    assert report is not None
    bundles.freeze(Path(folder) / "lists")
    bundles.frozen.LISTS = Path(folder) / "lists"
    end, gate = bundles.end, Path(folder) / "gate"

    def waits(log: Any, out: Path) -> None:
        (gate / f"{cell}-{os.getpid()}").write_text("")
        until((gate / GO).exists)
        end(log, out)

    bundles.end = waits
    places = [place for place in bundles.PLACES if place.cell == CELLS[cell]]
    bundles.write(Path(report), places=places)


def at_gate(folder: Path) -> list[psutil.Process]:
    """Return the processes of the runs that wait at the gate."""
    return [psutil.Process(int(path.name.rpartition("-")[2])) for path in (folder / "gate").glob("llamacpp*")]
