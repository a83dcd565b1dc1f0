"""`coldproof power`: run the suites against every injected fault and the unmodified engine, and draw the kill matrix.

Faults are measured in parallel as far as memory allows. An interrupted measurement resumes if it is started again with
the same `--out`.
"""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

from coldproof.harness.cli.io import say, time_span
from coldproof.harness.options import UsageError
from coldproof.harness.power.measure import Budgets, Measurement, measure_power, select_faults
from coldproof.reports.exports.write import write_text
from coldproof.reports.kill_matrix.kill_matrix import headline, render_power
from coldproof.reports.schema.results import encode

PURPOSE = "measure which injected faults the suites detect"
EXIT_CLEAN_FAILED, EXIT_INTERRUPTED = 1, 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "--worker", choices=("fingerprint", "model"), default="fingerprint", help="default: fingerprint"
    )
    parser.add_argument("--faults", default=None, metavar="NAME,...", help="faults or mechanisms (default: all)")
    parser.add_argument(
        "--budget",
        default="15s",
        metavar="TIME",
        help="time for the requirements that should detect the fault (default: 15s)",
    )
    parser.add_argument(
        "--wide-budget",
        default="30s",
        metavar="TIME",
        help="time for all requirements, with few examples each (default: 30s)",
    )
    parser.add_argument(
        "--wide",
        choices=("always", "missed", "never"),
        default="always",
        help="when to run all requirements against a fault: always (default), only if it was missed, or never",
    )
    parser.add_argument(
        "--clean-runs", type=int, default=3, metavar="N", help="runs against the unmodified engine (default: 3)"
    )
    parser.add_argument("--no-literal", action="store_true", help="do not run the scripts of the upstream bug reports")
    parser.add_argument(
        "--jobs",
        type=int,
        default=None,
        metavar="N",
        help="number of parallel runs (default: as many as memory allows)",
    )
    parser.add_argument("--seed", type=int, default=1, help="seed of all runs (default: 1)")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("coldproof-report/power"),
        metavar="DIR",
        help="folder for the results (default: coldproof-report/power)",
    )
    parser.add_argument("--again", action="store_true", help="discard the measurements in DIR and start again")


def run(options: argparse.Namespace) -> int:
    """Measure, write power.json and index.html, and return the exit code. Raises UsageError.

    The exit code is 1 if the unmodified engine failed a requirement, or if a run against it did not complete.
    """
    faults = select_faults(options.faults, options.worker)
    try:
        measurement = prepared(options)
    except OSError as problem:
        raise UsageError(str(problem)) from problem
    results = measure_power(
        measurement, faults, clean_runs=options.clean_runs, jobs=options.jobs, command=options.command_line, say=say
    )
    write_text(measurement.out / "power.json", encode(results).decode())
    write_text(measurement.out / "index.html", render_power(results))
    say(f"{headline(results)}\n{measurement.out / 'index.html'}")
    if not results.complete:
        return EXIT_INTERRUPTED
    return EXIT_CLEAN_FAILED if any(run.detections or run.problem for run in results.clean) else 0


def prepared(options: argparse.Namespace) -> Measurement:
    """Return the measurement that the options describe, and create its folder. Raises UsageError or OSError."""
    measurement = Measurement(
        worker=options.worker,
        seed=options.seed,
        budgets=Budgets(aimed=time_span(options.budget), wide=time_span(options.wide_budget)),
        out=options.out.resolve(),
        wide=options.wide,
        scripts=not options.no_literal,
    )
    if options.again:
        shutil.rmtree(measurement.out / "rows", ignore_errors=True)
    measurement.out.mkdir(parents=True, exist_ok=True)
    return measurement
