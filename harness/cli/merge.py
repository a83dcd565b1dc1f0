"""`coldproof merge DIR... --out DIR`: merge the shards of one run into one report or one bundle.

Exit code: that of the merged run; 1 also if the shards are refused, with one line for each reason; 3 the report cannot
be written; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.cli.io import FAILED, USAGE, Refusal, indented, write_stdout
from coldproof.harness.release.bundle.merge import merge_shards, read_shard, refusals
from coldproof.reports.assemble.assemble import EXIT_FAILED
from coldproof.reports.format.text import many

PURPOSE = "merge the shards of one run"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("shards", type=Path, nargs="+", metavar="DIR", help="the --report-dir of a run with --shard")
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="a new or empty folder")


def run(options: argparse.Namespace) -> int:
    """Refuse or merge the shards, and return the exit code. Raises Refusal or UsageError."""
    out: Path = options.out
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(USAGE, f"--out {out} exists and will not be overwritten; choose a new folder")
    logs = [read_shard(folder) for folder in options.shards]
    reasons = list(map(str, refusals(logs)))
    if reasons:
        write_stdout(indented([f"REFUSED: {many(len(reasons), 'reason')}", *reasons]))
        return EXIT_FAILED
    try:
        results = merge_shards(options.shards, logs, out)
    except OSError as problem:
        raise Refusal(FAILED, f"cannot write {out}: {problem.strerror or problem}") from problem
    write_stdout(f"{results.headline}\nreport: {out / 'index.html'}\n")
    return results.exit_code
