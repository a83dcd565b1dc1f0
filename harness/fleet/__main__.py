"""`python -m harness.fleet MATRIX.toml`: every run of a matrix on Ray's nodes, and one report over all of them.

Started again with the same `--out`, it goes on where it stopped: what came to a verdict is not run again.

Exit code: that of all runs together as a run's own is, 3 also where a run failed, was lost or is missing; 4 usage.
"""

from __future__ import annotations

import argparse
import datetime
import shlex
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from harness.environment import coldproof_version, commit
from harness.fleet.cases import copy_cases, named_apart
from harness.fleet.cluster import LOCAL, Cluster
from harness.fleet.drive import Driver
from harness.fleet.matrix import read_matrix
from harness.fleet.part import Fleet, part_of
from harness.fleet.remote import Order
from harness.fleet.sent import gathered, sent_name
from harness.fleet.store import Store
from harness.fleet.units import Unit, units_of
from harness.fleet.whole import results_of
from harness.options import UsageError
from harness.qualify.sources import ROOT, sources_digest
from reports.assemble import EXIT_HARNESS, EXIT_USAGE
from reports.command import Parser
from reports.text import many, one_line
from reports.write import write_all


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(words)
    try:
        return run(options, shlex.join(["python", "-m", "harness.fleet", *words]))
    except UsageError as problem:
        sys.stderr.write(f"python -m harness.fleet: {one_line(str(problem))}\n")
        return EXIT_USAGE
    except OSError as problem:
        sys.stderr.write(f"python -m harness.fleet: cannot write {options.out}: {problem.strerror or problem}\n")
        return EXIT_HARNESS


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="python -m harness.fleet", description="Runs a matrix of suites on Ray, and reports them as one."
    )
    made.add_argument("matrix", type=Path, metavar="MATRIX.toml", help="machines and runs: docs/fleet.md")
    made.add_argument(
        "--address",
        default=LOCAL,
        help="a Ray cluster's, or auto for the one of this machine (default: one of its own)",
    )
    made.add_argument("--out", type=Path, default=Path("reports/out/fleet"), metavar="DIR")
    made.add_argument("--workers", type=positive, metavar="N", help="at most so many at a time; default: what there is")
    made.add_argument(
        "--retries", type=int, default=2, metavar="N", help="tries beside the first for a run whose node was lost (2)"
    )
    made.add_argument("--autoscaling", action="store_true", help="wait for nodes that are not there yet")
    made.add_argument("--list", action="store_true", help="print the runs, and run none")
    return made


def positive(text: str) -> int:
    """A number of workers."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


def run(options: argparse.Namespace, command: str) -> int:
    """All of it. Raises UsageError, OSError."""
    matrix = read_matrix(options.matrix)
    units = units_of(matrix, options.matrix.parent.absolute())
    if options.list:
        sys.stdout.writelines(f"{unit.id}\n" for unit in units)
        return 0
    store = Store(options.out)
    try:
        return drive(options, store, units, command)
    finally:
        store.close()


def drive(options: argparse.Namespace, store: Store, units: Sequence[Unit], command: str) -> int:
    """What is left to do, and the report over all of it. Raises UsageError, OSError."""
    sources, started = sources_digest(), time.time()
    left = [unit for unit in units if not store.is_done(unit, sources)]
    again = sum(store.report(unit.id).exists() for unit in left)
    why = f"; {again} had failed, or were of other sources or another matrix, and run again" if again else ""
    say(f"{many(len(units), 'run')}, {len(units) - len(left)} of them done before{why}")
    interrupted = False
    try:
        if left:
            work(options, store, left, sources)
    except KeyboardInterrupt:
        interrupted = True
        say("what is done is kept, the same command goes on from here")
    parts = named_apart([part_of(unit, store.record(unit, sources), store.report(unit.id)) for unit in units])
    begun = min([started, *(part.record.began for part in parts if part.record is not None)])
    fleet = Fleet(
        command=command,
        version=coldproof_version(),
        started=moment(begun),
        at=begun,
        environment={"coldproof commit": commit(ROOT), "coldproof sources": f"SHA-256 {sources}"},
        interrupted=interrupted,
    )
    results = results_of(fleet, parts)
    copy_cases(parts, options.out)
    write_all(results, options.out)
    say(f"{results.headline}\nreport: {options.out / 'index.html'}")
    return results.exit_code


def moment(at: float) -> str:
    """As a run says when it started."""
    return datetime.datetime.fromtimestamp(at, datetime.UTC).isoformat(timespec="seconds")


def work(options: argparse.Namespace, store: Store, units: Sequence[Unit], sources: str) -> None:
    """Have the units run. Raises UsageError where a machine is asked for that the cluster has not."""
    local = options.address == LOCAL
    with tempfile.TemporaryDirectory(prefix="coldproof-fleet-") as folder:
        cluster = Cluster(options.address, files=None if local else lambda: gathered(units, Path(folder)))
        try:
            lacking = cluster.lacking(list({unit.machine.name: unit.machine for unit in units}.values()))
            if lacking and not options.autoscaling:
                raise UsageError(f"{lacking[0]}; --autoscaling waits for nodes that are going to come")
            Driver(
                nodes=cluster,
                store=store,
                order=lambda unit: order(unit, options.out, local=local),
                digest=lambda unit: unit.digest(sources),
                tell=say,
                workers=options.workers,
                retries=options.retries,
            ).drive(units)
        except KeyboardInterrupt:
            say("interrupted: ending what still runs")
            raise
        finally:
            cluster.close()


def order(unit: Unit, out: Path, *, local: bool) -> Order:
    """A unit as its node gets it: on this machine our own files, elsewhere those that Ray brings along."""
    waivers = "" if unit.waivers is None else str(unit.waivers) if local else sent_name(unit.waivers)
    kept = out if not out.is_absolute() and ".." not in out.parts else Path(out.name)
    return Order(
        unit=unit.id,
        words=tuple(unit.words()),
        waivers=waivers,
        folder=(kept / "units" / unit.id).as_posix(),
        root=str(ROOT) if local else "",
        python=unit.run.python,
    )


def say(words: str) -> None:
    """Lines to whoever waits, each at once."""
    sys.stdout.write(f"{words}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
