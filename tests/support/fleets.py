"""Fleets without engines: matrices, runs that write a small bundle, and nodes that follow a script."""

from __future__ import annotations

import io
import json
import os
import sys
import tarfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import psutil
from support import bundles
from support.paths import ROOT
from support.waiting import until

from coldproof import IMPORT_ROOT
from coldproof.harness.fleet.cluster import NodeLost, TaskFailed
from coldproof.harness.fleet.matrix import Machine, Matrix, MatrixRun, Unit, units_of
from coldproof.harness.fleet.merge.unit_report import Fleet, Part, read_part
from coldproof.harness.fleet.node import EVENTS, EventLines, Message, Order, RunEnded, RunStarted
from coldproof.harness.fleet.store import Record, Store

SOURCES = "s" * 64
CELLS = {"llamacpp": "one", "llamacpp-one-slot": "two"}  # an engine's cells, and those of the bundles' small suite
GO = "go"
Script = Sequence[Message | NodeLost | TaskFailed]


def matrix(*runs: MatrixRun, machines: Sequence[str] = ("cpu",)) -> Matrix:
    """Return a matrix of these runs, or of one run of two cells, on these kinds of machines."""
    one = MatrixRun(engine="llamacpp", machines=tuple(machines), cells=tuple(CELLS))
    return Matrix(machine=tuple(Machine(name=name) for name in machines), run=runs or (one,))


def units(given: Matrix | None = None) -> list[Unit]:
    """Return the units of a matrix."""
    return units_of(given or matrix(), ROOT)


def report(folder: Path, unit: Unit) -> Path:
    """Write the report that a run of the small suite in a unit's cell leaves, and return its folder."""
    return bundles.write(folder, places=[p for p in bundles.PLACES if p.cell == CELLS[unit.cell]])


def archive(folder: Path) -> bytes:
    """Return all files of a folder but the events, packed as a node sends them."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as made:
        for path in folder.rglob("*"):
            if path.is_file() and path.name != EVENTS:
                made.add(path, path.relative_to(folder).as_posix())
    return held.getvalue()


def node_messages(folder: Path, *, code: int = 0, files: bool = True, node: str = "n1") -> list[Message]:
    """Return the messages that a node sends about a run that left this folder."""
    return [
        RunStarted(node),
        EventLines((folder / EVENTS).read_bytes()),
        RunEnded(code, archive(folder if files else folder / "nothing"), "it said this\n"),
    ]


class ScriptedNodes:
    """Nodes that answer each attempt of a unit with the next of its scripts."""

    def __init__(self, scripts: dict[str, list[Script]]) -> None:
        self.scripts = {unit: list(tries) for unit, tries in scripts.items()}
        self.started: list[str] = []
        self.most = 0
        self.running: dict[str, list[Any]] = {}

    def start(self, order: Order, machine: Machine) -> None:
        """Start the next script of a unit."""
        self.started.append(order.unit)
        self.running[order.unit] = list(self.scripts[order.unit].pop(0))
        self.most = max(self.most, len(self.running))

    def messages(self, seconds: float) -> list[tuple[str, Message | NodeLost | TaskFailed]]:
        """Return the next message of each running unit."""
        found = [(unit, script.pop(0)) for unit, script in self.running.items()]
        self.running = {unit: script for unit, script in self.running.items() if script}
        return found


def order(unit: Unit) -> Order:
    """Return the order that a driver sends for a unit."""
    return Order(unit.id, tuple(unit.words()), "", f"out/units/{unit.id}", "", "")


def record(unit: Unit, **changes: Any) -> Record:
    """Return the record of a unit's run that ended well."""
    made = Record(unit=unit.id, digest=unit.digest(SOURCES), exit_code=0, began=1000.0, seconds=60.0, node="n1")
    return msgspec.structs.replace(made, **changes)


def done(store: Store, unit: Unit, **changes: Any) -> Part:
    """Store the report and the record of a unit that has run, and return its part."""
    report(store.report(unit.id), unit)
    store.keep(record(unit, **changes))
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
        f"#!{sys.executable}\nimport sys\nsys.path[:0] = {[str(IMPORT_ROOT), str(ROOT / 'tests')]!r}\n"
        f"from support.fleets import fake_run\nfake_run(sys.argv[1:], {str(folder)!r})\n"
    )
    script.chmod(0o755)
    return script


def fake_run(words: list[str], folder: str) -> None:
    """Write the events of a run but not its end, wait at the gate, then end. A test can kill the run at the gate."""
    given = dict(word.split("=", 1) for word in words if word.startswith("--") and "=" in word)
    bundles.freeze(Path(folder) / "lists")
    bundles.frozen.LISTS = Path(folder) / "lists"
    end, gate = bundles.end, Path(folder) / "gate"

    def waits(log: Any, out: Path) -> None:
        (gate / f"{given['--cells']}-{os.getpid()}").write_text("")
        until((gate / GO).exists)
        end(log, out)

    bundles.end = waits
    places = [place for place in bundles.PLACES if place.cell == CELLS[given["--cells"]]]
    bundles.write(Path(given["--report-dir"]), places=places)


def at_gate(folder: Path) -> list[psutil.Process]:
    """Return the processes of the runs that wait at the gate."""
    return [psutil.Process(int(path.name.rpartition("-")[2])) for path in (folder / "gate").glob("llamacpp*")]


def counted(folder: Path) -> dict[str, int]:
    """Return how often each kind of event occurs in a folder's events."""
    kinds: dict[str, int] = {}
    for line in (folder / EVENTS).read_text().splitlines():
        kind = json.loads(line)["event"]
        kinds[kind] = kinds.get(kind, 0) + 1
    return kinds
