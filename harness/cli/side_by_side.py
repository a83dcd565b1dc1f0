"""`coldproof side-by-side RUN RUN ...`: one table, requirement by engine, with links into the report of each run.

Exit code: 0 for any verdicts; 3 a file cannot be written; 4 wrong usage, or a run cannot be read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import quote

from coldproof.harness.cli.io import USAGE, Refusal, loaded, results_file, write
from coldproof.reports.side_by_side.columns import Source
from coldproof.reports.side_by_side.markdown import matrix_markdown
from coldproof.reports.side_by_side.matrix import engine_matrix
from coldproof.reports.side_by_side.page import render_matrix

PURPOSE = "write one page that shows which engine conforms to which requirement"
_PAGE = "index.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "runs",
        type=Path,
        nargs="+",
        metavar="RUN",
        help="a results.json or a report folder, in the order of the columns",
    )
    parser.add_argument(
        "-o", "--out", type=Path, metavar="FILE", help="write the page here (default, without --markdown: ./index.html)"
    )
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="write a short form for a CI step summary")


def run(options: argparse.Namespace) -> int:
    """Read all runs, write the requested files and return the exit code. Raises Refusal."""
    page = options.out or (None if options.markdown else Path(_PAGE))
    here = (page or options.markdown).parent
    shown = engine_matrix([source(one, here) for one in options.runs])
    check(options.runs, [target for target in (page, options.markdown) if target])
    if page is not None:
        write(page, render_matrix(shown))
    if options.markdown is not None:
        write(options.markdown, matrix_markdown(shown))
    return 0


def check(runs: Sequence[Path], targets: Sequence[Path]) -> None:
    """Raise Refusal if a run is given twice, or if a target is the report of one of the runs."""
    seen: dict[Path, Path] = {}
    for one in runs:
        file = results_file(one).resolve()
        if file in seen:
            raise Refusal(USAGE, f"{seen[file]} and {one} are the same run")
        seen[file] = one
    for target in targets:
        if any(target.resolve() in (file, file.parent / _PAGE) for file in seen):
            raise Refusal(USAGE, f"{target} is the report of one of the runs; choose another file with --out")


def source(path: Path, here: Path) -> Source:
    """Read a run, with the relative link from the folder `here` to its report."""
    results = loaded(path)
    file = results_file(path).absolute()
    page = file.parent / _PAGE
    near = _near(page, here)
    return Source(
        results=results,
        link=_link(near) if near is not None and page.is_file() else "",
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
