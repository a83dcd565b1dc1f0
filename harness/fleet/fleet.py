"""Runs a fleet: its unfinished units as Ray tasks, and then the merged report of all units.

A fleet that is started again with the same folder resumes: finished units are not run again.
"""

from __future__ import annotations

import contextlib
import datetime
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from coldproof import IMPORT_ROOT
from coldproof.harness.fleet.matrix import Unit
from coldproof.harness.fleet.merge.results import fleet_results
from coldproof.harness.fleet.merge.unit_report import Fleet, copy_cases, read_part, with_unique_case_names
from coldproof.harness.fleet.on_ray import check_machines, connected, ended_runs, start_on
from coldproof.harness.fleet.store import UNITS, Record, Store
from coldproof.harness.release.run.sources import ROOT, source_files, sources_digest
from coldproof.harness.session.environment import coldproof_version, commit
from coldproof.reports.exports.write import write_all
from coldproof.reports.format.text import duration, many

PACKAGE = "coldproof"
ALSO = ("__init__.py", "__main__.py", "py.typed")  # of the package, beside its rooms


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetOptions:
    """How a fleet is run. `say` receives the progress messages.

    `workers`: the maximum number of runs at a time. `retries`: the maximum number of retries of a lost run.
    """

    address: str
    out: Path
    command: str
    say: Callable[[str], None]
    workers: int | None = None
    retries: int = 2
    autoscaling: bool = False


def run_fleet(options: FleetOptions, units: Sequence[Unit]) -> int:
    """Run all unfinished units, write the merged report and return the exit code. Raises UsageError, OSError.

    The caller has locked the fleet's folder.
    """
    store, sources, started = Store(options.out), sources_digest(), time.time()
    left = [unit for unit in units if not store.is_done(unit, sources)]
    again = sum(store.report(unit.id).exists() for unit in left)
    why = f"; {again} failed before or have other sources or another matrix, and run again" if again else ""
    options.say(f"{many(len(units), 'run')}, {len(units) - len(left)} of them finished before{why}")
    interrupted = False
    try:
        if left:
            run_units(options, store, left, sources)
    except KeyboardInterrupt:
        interrupted = True
        options.say("interrupted: finished runs are kept; the same command resumes")
    parts = [read_part(unit, store.record(unit, sources), store.report(unit.id)) for unit in units]
    begun = min([started, *(part.record.began for part in parts if part.record is not None)])
    fleet = Fleet(
        command=options.command,
        version=coldproof_version(),
        started=datetime.datetime.fromtimestamp(begun, datetime.UTC).isoformat(timespec="seconds"),
        at=begun,
        environment={"coldproof commit": commit(), "coldproof sources": f"SHA-256 {sources}"},
        interrupted=interrupted,
    )
    parts = with_unique_case_names(parts)
    results = fleet_results(fleet, parts)
    copy_cases(parts, options.out)
    write_all(results, options.out)
    options.say(f"{results.headline}\nreport: {options.out / 'index.html'}")
    return results.exit_code


def run_units(options: FleetOptions, store: Store, units: Sequence[Unit], sources: str) -> None:
    """Run the units and store how each ended. Raises UsageError without Ray or without a machine's resources."""
    kept = options.out if not options.out.is_absolute() and ".." not in options.out.parts else Path(options.out.name)
    with contextlib.ExitStack() as stack:
        sent = copy_sources(Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="coldproof-fleet-"))))
        ray = stack.enter_context(connected(options.address, sent, retries=options.retries))
        if not options.autoscaling:
            check_machines(ray, {unit.machine.name: unit.machine for unit in units}.values())

        def start(unit: Unit) -> Any:
            """Submit a unit. Known issues are sent as text; all other options must mean the same on the node."""
            store.remove(unit.id)
            waivers = unit.waivers.read_text(encoding="utf-8") if unit.waivers is not None else None
            folder = (kept / UNITS / unit.id).as_posix()
            run = (unit.words(folder), waivers, folder, unit.run.python)
            return start_on(ray, unit.machine, unit.id, *run, retries=options.retries)

        runs = ended_runs(ray, units, start, workers=options.workers, say=options.say)
        stack.enter_context(contextlib.closing(runs))
        began = time.monotonic()
        for number, (unit, ended) in enumerate(runs, start=1):
            record = store.keep(unit.id, unit.digest(sources), ended)
            left = time_left(time.monotonic() - began, number, len(units))
            options.say(f"{unit.id}: {outcome_text(record)}; {number} of {len(units)} done{left}")


def time_left(elapsed: float, done: int, units: int) -> str:
    """Return how long the other units take if they end as often as those before; empty if there are none."""
    return f", about {duration(elapsed / done * (units - done))} left" if done < units else ""


def outcome_text(record: Record) -> str:
    """Return the result of a unit as text."""
    after = f" after {many(record.lost, 'lost attempt')}" if record.lost else ""
    said = f"ERROR: {record.problem}" if record.problem else f"exit code {record.exit_code}"
    return f"{said}, {duration(record.seconds)}{after}"


def copy_sources(folder: Path) -> Path:
    """Copy the package into a folder, for the nodes, and return the folder. Raises OSError."""
    own = {path.relative_to(ROOT): path for path in source_files(ROOT)}
    for name, path in {**own, **{Path(name): Path(IMPORT_ROOT) / PACKAGE / name for name in ALSO}}.items():
        (folder / PACKAGE / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, folder / PACKAGE / name)
    return folder
