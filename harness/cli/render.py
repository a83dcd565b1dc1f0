"""`coldproof render RUN`: write the report of a stored run again.

A killed run leaves only events.ndjson. All files of its report are then written from the events, and state that the run
did not complete. An incomplete results.json is replaced in the same way.

Exit code: 0 written; 3 a file cannot be written; 4 wrong usage, or the run cannot be read.
"""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path

import msgspec

from coldproof.harness.cli.io import FAILED, USAGE, Refusal, loaded, reason_of, results_file, write
from coldproof.harness.release.bundle.run_folder import EVENTS
from coldproof.reports.assemble.assemble import assemble, read_events, with_end
from coldproof.reports.exports.write import write_all
from coldproof.reports.format.text import storable
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.schema.results import Results

PURPOSE = "write the report of a stored or killed run again"
_MALFORMED = (
    LookupError,
    TypeError,
    ValueError,
    msgspec.MsgspecError,
)  # events of another version, or of another program


class Start(msgspec.Struct, frozen=True):
    """The start time in the first line of events.ndjson."""

    started: str = ""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("results", type=Path, metavar="RUN", help="a report folder, or a results.json")
    parser.add_argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write only the page, to this file (default: in the report folder)",
    )


def run(options: argparse.Namespace) -> int:
    """Write the page or all files of the report, and return the exit code. Raises Refusal."""
    source: Path = options.results
    log = source / EVENTS
    if source.is_dir() and not log.is_file() and not results_file(source).exists():
        raise Refusal(USAGE, f"{source} has neither results.json nor {EVENTS}; give the --report-dir of a run")
    stored = None if log.is_file() and not results_file(source).exists() else loaded(source)
    if stored is not None and not (log.is_file() and is_behind(stored, log)):
        write(options.output or results_file(source).parent / "index.html", render_html(stored))
        return 0
    results = from_events(log)
    if options.output is not None:
        write(options.output, render_html(results))
        return 0
    try:
        write_all(results, source)
    except OSError as problem:
        raise Refusal(FAILED, f"cannot write {source}: {reason_of(problem)}") from problem
    return 0


def is_behind(stored: Results, log: Path) -> bool:
    """Return whether the events may hold more than the stored results: those are incomplete or of another run."""
    with log.open("rb") as lines, contextlib.suppress(msgspec.MsgspecError):
        return not stored.complete or msgspec.json.decode(lines.readline(), type=Start).started != stored.started
    return False


def from_events(log: Path) -> Results:
    """Return the results that follow from the events, also of a run that did not complete. Raises Refusal."""
    try:
        results = assemble(with_end(read_events(log)))
        return msgspec.convert(storable(msgspec.to_builtins(results)), Results)
    except OSError as problem:
        raise Refusal(USAGE, f"cannot read {log}: {reason_of(problem)}") from problem
    except KeyError as problem:
        raise Refusal(USAGE, f"cannot read {log}: an event lacks {problem}") from problem
    except _MALFORMED as problem:
        raise Refusal(USAGE, f"cannot read {log}: {problem}") from problem
