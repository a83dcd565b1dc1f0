"""`coldproof render`, `compare` and `side-by-side`: write pages from stored runs.

Exit code: 0 written; 1 of `compare`: a requirement is newly violated, fails in a different way or is no longer
exercised, or there is nothing to compare; 3 a file cannot be written; 4 wrong usage, or a run cannot be read.
"""

from __future__ import annotations

import argparse
import contextlib
import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import quote

import msgspec

from coldproof.harness.case.finding_facts import with_facts
from coldproof.harness.cli.io import (
    USAGE,
    Refusal,
    Subcommand,
    added_to,
    argument,
    interpreting,
    loaded,
    reason_of,
    results_file,
    write,
    write_stdout,
)
from coldproof.harness.release.bundle.run_folder import EVENTS
from coldproof.harness.release.run.merged import stored
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.stored_files import decode, read_lines
from coldproof.harness.session.run_reports import CASES, write_case_files
from coldproof.reports.assemble.assemble import read_events, with_end
from coldproof.reports.exports.write import write_all
from coldproof.reports.files.own_folder import make_sub_folder
from coldproof.reports.format.text import is_file_name
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.side_by_side import kinds
from coldproof.reports.side_by_side.changes import exit_code
from coldproof.reports.side_by_side.columns import Source
from coldproof.reports.side_by_side.markdown import side_by_side_markdown
from coldproof.reports.side_by_side.matrix import SideBySide, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side

_PAGE = "index.html"


class Start(msgspec.Struct, frozen=True):
    """The start time in the first line of events.ndjson."""

    started: str = ""


def render(options: argparse.Namespace) -> int:
    """Write the page or all files of the report, and return the exit code. Raises Refusal.

    A killed run leaves only events.ndjson. All files of its report are then written from the events, and state that the
    run did not complete. An incomplete results.json is replaced in the same way.
    """
    source: Path = options.results
    log = source / EVENTS
    if source.is_dir() and not log.is_file() and not results_file(source).exists():
        raise Refusal(USAGE, f"{source} has neither results.json nor {EVENTS}; give the --report-dir of a run")
    stored = None if log.is_file() and not results_file(source).exists() else loaded(source)
    if stored is not None and not (log.is_file() and is_behind(stored, log)):
        with interpreting(source):
            write_page(options.output, results_file(source).parent, with_facts(stored))
        return 0
    results = with_facts(from_events(log))
    with interpreting(log):
        if options.output is not None:
            write(options.output, render_html(results))
            return 0
        with added_to(source):
            write_missing_cases(results, source)
            write_all(results, source)
    return 0


def write_missing_cases(results: Results, report: Path) -> None:
    """Write the files of the cases that a killed run had not written. A name that is none of a file gets none. Raises
    OSError.
    """
    make_sub_folder(report / CASES)
    statements = {one.id: one.statement for one in results.requirements}
    for case in results.cases:
        if is_file_name(case.id) and not (report / CASES / f"{case.id}.json").exists():
            said = statements.get(case.requirement, "")
            write_case_files(case, report, statement=said, environment=results.environment)


def write_page(output: Path | None, folder: Path, results: Results) -> None:
    """Write the page to a file that the user chose, or into the report folder. Raises Refusal."""
    if output is not None:
        write(output, render_html(results))
        return
    with added_to(folder):
        write(folder / _PAGE, render_html(results))


RENDER = Subcommand(
    "write the report of a stored or killed run again",
    render,
    argument("results", type=Path, metavar="RUN", help="a report folder, or a results.json"),
    argument(
        "-o",
        "--output",
        type=Path,
        metavar="FILE",
        help="write only the page, to this file (default: in the report folder)",
    ),
)


def is_behind(stored: Results, log: Path) -> bool:
    """Return whether the events may hold more than the stored results: those are incomplete or of another run."""
    with contextlib.suppress(msgspec.MsgspecError):
        first = next(read_lines(log), b"")
        return not stored.complete or decode(first, Start).started != stored.started
    return False


def from_events(log: Path) -> Results:
    """Return the results that follow from the events, also of a run that did not complete. Raises Refusal."""
    try:
        with interpreting(log):
            return stored(with_end(read_events(log)))
    except OSError as problem:
        raise Refusal(USAGE, f"cannot read {log}: {reason_of(problem)}") from problem


def compare_runs(options: argparse.Namespace) -> int:
    """Read both runs, write the requested files and return the exit code. Raises Refusal."""
    here = (options.html or Path(_PAGE)).parent
    sources = [linked_source(run, here, label) for run, label in ((options.old, "Before"), (options.new, "Now"))]
    check_targets([options.old, options.new], [options.html, options.markdown])
    with interpreting(f"{options.old} and {options.new}"):
        shown = side_by_side(sources, kinds.TWO_RUNS)
        if options.markdown is None and options.html is None:
            write_stdout(side_by_side_markdown(shown))
        written(shown, options.html, options.markdown)
        return exit_code(shown.changes)


def written(shown: SideBySide, page: Path | None, markdown: Path | None) -> None:
    """Write the forms that were asked for. Raises Refusal."""
    if page is not None:
        write(page, render_side_by_side(shown))
    if markdown is not None:
        write(markdown, side_by_side_markdown(shown))


COMPARE = Subcommand(
    "compare two runs: new, fixed and unchanged violations, and requirements that are no longer exercised",
    compare_runs,
    argument("old", type=Path, metavar="OLD.json", help="results.json of the earlier run, or its folder"),
    argument("new", type=Path, metavar="NEW.json", help="results.json of the later run, or its folder"),
    argument(
        "--markdown", type=Path, metavar="FILE", help="write Markdown; without --markdown and --html it goes to stdout"
    ),
    argument("--html", type=Path, metavar="FILE", help="write one self-contained HTML page"),
)


def compare_engines(options: argparse.Namespace) -> int:
    """Read all runs, write the requested files and return the exit code. Raises Refusal."""
    page = options.out or (None if options.markdown else Path(_PAGE))
    here = (page or options.markdown).parent
    if options.out is None and page is not None and page.exists():
        raise Refusal(USAGE, f"{page} exists; name the page with --out")
    sources = [linked_source(one, here) for one in options.runs]
    check_runs(options.runs)
    check_targets(options.runs, [page, options.markdown])
    with interpreting(", ".join(map(str, options.runs))):
        written(side_by_side(sources, kinds.ENGINES), page, options.markdown)
    return 0


SIDE_BY_SIDE = Subcommand(
    "write one page that shows which engine conforms to which requirement",
    compare_engines,
    argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a results.json or a report folder, in the order of the columns",
    ),
    argument(
        "-o", "--out", type=Path, metavar="FILE", help="write the page here (default, without --markdown: ./index.html)"
    ),
    argument("--markdown", type=Path, metavar="FILE", help="write a short form for a CI step summary"),
)


def check_runs(runs: Sequence[Path]) -> None:
    """Raise Refusal if a run is given twice."""
    seen: dict[Path, Path] = {}
    for one in runs:
        if (first := seen.setdefault(results_file(one).resolve(), one)) is not one:
            raise Refusal(USAGE, f"{first} and {one} are the same run")


def check_targets(runs: Sequence[Path], targets: Sequence[Path | None]) -> None:
    """Raise Refusal if a file to write is the report of one of the runs."""
    files = [results_file(one).resolve() for one in runs]
    for target in filter(None, targets):
        if any(target.resolve() in (file, file.parent / _PAGE) for file in files):
            raise Refusal(USAGE, f"{target} is the report of one of the runs; choose another file")


def linked_source(path: Path, here: Path, label: str = "") -> Source:
    """Read a run, with the relative links from the folder `here` to its report and its cases."""
    results = loaded(path)
    file = results_file(path).absolute()
    page = file.parent / _PAGE
    near = _near(page, here)
    linked = near is not None and page.is_file()
    return Source(
        results=results,
        label=label,
        link=_link(near) if near is not None and linked else "",
        cases=_link(near.with_name(CASES)) if near is not None and linked and (file.parent / CASES).is_dir() else "",
        name=str(near.with_name(file.name)) if near is not None else str(PurePath(file.parent.name, file.name)),
    )


def _near(path: Path, here: Path) -> PurePath | None:
    """Return the relative path to a file below or beside a folder; None elsewhere, where links would break easily."""
    try:
        way = PurePath(os.path.relpath(path, here))
    except ValueError:  # another drive
        return None
    return way if way.parts.count(os.pardir) <= 1 else None


def _link(way: PurePath) -> str:
    """Return a relative URL. Colons are escaped too, so that no part reads as a scheme."""
    return "/".join(quote(os.fsencode(part), safe="") for part in way.parts)
