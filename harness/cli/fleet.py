"""`coldproof fleet MATRIX.toml`: run a matrix on the nodes of a Ray cluster, and merge the results into one report.

If it is started again with the same `--out`, it resumes: runs that reached a verdict are not repeated.

Exit code: that of the merged run; 3 also if a run failed, was lost or is missing; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.cli.io import Subcommand, argument, at_least, out_folder, own_folder, say
from coldproof.harness.fleet.fleet import FleetOptions, run_fleet
from coldproof.harness.fleet.matrix import read_matrix, units_of
from coldproof.harness.fleet.on_ray import LOCAL


def positive(text: str) -> int:
    """Parse a number of workers."""
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("must be at least 1")
    return number


def run(options: argparse.Namespace) -> int:
    """List or run the units, and return the exit code. Raises Refusal or UsageError."""
    units = units_of(read_matrix(options.matrix), options.matrix.parent.absolute())
    if options.list:
        for unit in units:
            say(unit.id)
        return 0
    fleet = FleetOptions(
        address=options.address,
        out=options.out,
        command=options.command_line,
        say=say,
        workers=options.workers,
        retries=options.retries,
        autoscaling=options.autoscaling,
    )
    with own_folder(options.out):
        return run_fleet(fleet, units)


FLEET = Subcommand(
    "run a matrix of engines, cells and seeds on Ray, and merge all runs into one report",
    run,
    argument(
        "matrix", type=Path, metavar="MATRIX.toml", help="file with machines and runs; docs/fleet.md describes it"
    ),
    argument(
        "--address",
        default=LOCAL,
        help="address of a Ray cluster, or auto for the cluster of this machine (default: start a local one)",
    ),
    out_folder("coldproof-report/fleet"),
    argument(
        "--workers",
        type=positive,
        metavar="N",
        help="maximum number of runs at a time (default: what the cluster has room for)",
    ),
    argument(
        "--retries",
        type=at_least(0),
        default=2,
        metavar="N",
        help="how often to repeat a run whose node was lost (default: 2)",
    ),
    argument("--autoscaling", action="store_true", help="wait for nodes that the cluster has not started yet"),
    argument("--list", action="store_true", help="print the runs and do not start them"),
)
