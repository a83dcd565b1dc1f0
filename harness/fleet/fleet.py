"""Runs a fleet, from its first unit to the merged report.

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

from coldproof import IMPORT_ROOT
from coldproof.harness.fleet.cluster import LOCAL, Cluster
from coldproof.harness.fleet.matrix import Unit
from coldproof.harness.fleet.merge.results import fleet_results
from coldproof.harness.fleet.merge.unit_report import Fleet, copy_cases, read_part, with_unique_case_names
from coldproof.harness.fleet.node import Order
from coldproof.harness.fleet.scheduler import Driver
from coldproof.harness.fleet.store import Store
from coldproof.harness.options import UsageError
from coldproof.harness.release.run.record import digest_of
from coldproof.harness.release.run.sources import ROOT, source_files, sources_digest
from coldproof.harness.session.environment import coldproof_version, commit
from coldproof.reports.exports.write import write_all
from coldproof.reports.format.text import many

PACKAGE = "coldproof"
ALSO = ("__init__.py", "__main__.py", "py.typed")  # of the package, beside its rooms
WAIVERS = "fleet-known-issues"  # a folder beside the package


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
    """Run all unfinished units, write the merged report and return the exit code. Raises UsageError, OSError."""
    with contextlib.closing(Store(options.out)) as store:
        return run_and_report(options, store, units)


def run_and_report(options: FleetOptions, store: Store, units: Sequence[Unit]) -> int:
    """Run the unfinished units and write the merged report. Return the exit code. Raises UsageError, OSError."""
    sources, started = sources_digest(), time.time()
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
        options.say("finished runs are kept; the same command resumes")
    parts = with_unique_case_names(
        [read_part(unit, store.record(unit, sources), store.report(unit.id)) for unit in units]
    )
    begun = min([started, *(part.record.began for part in parts if part.record is not None)])
    fleet = Fleet(
        command=options.command,
        version=coldproof_version(),
        started=datetime.datetime.fromtimestamp(begun, datetime.UTC).isoformat(timespec="seconds"),
        at=begun,
        environment={"coldproof commit": commit(), "coldproof sources": f"SHA-256 {sources}"},
        interrupted=interrupted,
    )
    results = fleet_results(fleet, parts)
    copy_cases(parts, options.out)
    write_all(results, options.out)
    options.say(f"{results.headline}\nreport: {options.out / 'index.html'}")
    return results.exit_code


def run_units(options: FleetOptions, store: Store, units: Sequence[Unit], sources: str) -> None:
    """Run the units. Raises UsageError if the cluster lacks the resources of a machine."""
    local = options.address == LOCAL
    with tempfile.TemporaryDirectory(prefix="coldproof-fleet-") as folder:
        cluster = Cluster(options.address, files=None if local else lambda: copy_sources(units, Path(folder)))
        try:
            lacking = cluster.lacking(list({unit.machine.name: unit.machine for unit in units}.values()))
            if lacking and not options.autoscaling:
                raise UsageError(f"{lacking[0]}; use --autoscaling to wait for new nodes")
            Driver(
                nodes=cluster,
                store=store,
                order=lambda unit: order_of(unit, options.out, local=local),
                digest=lambda unit: unit.digest(sources),
                tell=options.say,
                workers=options.workers,
                retries=options.retries,
            ).drive(units)
        except KeyboardInterrupt:
            options.say("interrupted: ending the running units")
            raise
        finally:
            cluster.close()


def order_of(unit: Unit, out: Path, *, local: bool) -> Order:
    """Return the order for a unit. Local runs use this checkout; remote runs use the files that Ray sends."""
    waivers = "" if unit.waivers is None else str(unit.waivers) if local else sent_name(unit.waivers)
    kept = out if not out.is_absolute() and ".." not in out.parts else Path(out.name)
    return Order(
        unit=unit.id,
        words=tuple(unit.words()),
        waivers=waivers,
        folder=(kept / "units" / unit.id).as_posix(),
        root=IMPORT_ROOT if local else "",
        python=unit.run.python,
    )


def copy_sources(units: Sequence[Unit], folder: Path) -> Path:
    """Copy the package and the units' known issues into the folder for remote nodes, and return it. Raises OSError."""
    for path in source_files(ROOT):
        copy_file(path, folder / PACKAGE / path.relative_to(ROOT))
    for name in ALSO:
        copy_file(Path(IMPORT_ROOT) / PACKAGE / name, folder / PACKAGE / name)
    for waivers in {unit.waivers for unit in units if unit.waivers is not None}:
        copy_file(waivers, folder / sent_name(waivers))
    return folder


def copy_file(path: Path, to: Path) -> None:
    """Copy one file; its folder is made if need be."""
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)


def sent_name(waivers: Path) -> str:
    """Return where a node finds a file of known issues. Two files of one name get two."""
    return f"{WAIVERS}/{digest_of(waivers)[:12]}-{waivers.name}"
