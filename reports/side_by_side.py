"""`python -m reports side-by-side RUN RUN ...`: requirement x engine, each square a link into that run's own report.

Exit code: 0 whatever the verdicts are, for each run has its own; 3 a file cannot be written; 4 usage, or a run cannot
be read.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path, PurePath
from urllib.parse import quote

from reports import command
from reports.columns import Source
from reports.lineup import lineup
from reports.lineup_markdown import lineup_markdown
from reports.lineup_page import render_lineup

PURPOSE = "which engine conforms to which requirement, in one page over several runs"
_PAGE = "index.html"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments."""
    parser.add_argument(
        "runs", type=Path, nargs="+", metavar="RUN", help="a results.json or a report folder, in the columns' order"
    )
    parser.add_argument("-o", "--out", type=Path, metavar="FILE", help="default, without --markdown: ./index.html")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="the same in short, for a CI step summary")


def run(options: argparse.Namespace) -> int:
    """Read all runs, write what was asked for; returns the exit code. Raises command.Refusal."""
    page = options.out or (None if options.markdown else Path(_PAGE))
    here = (page or options.markdown).parent
    shown = lineup([source(one, here) for one in options.runs])
    check(options.runs, [target for target in (page, options.markdown) if target])
    if page is not None:
        command.write(page, render_lineup(shown))
    if options.markdown is not None:
        command.write(options.markdown, lineup_markdown(shown))
    return 0


def check(runs: Sequence[Path], targets: Sequence[Path]) -> None:
    """Refuse a run that is given twice, and to write over what a run has written."""
    seen: dict[Path, Path] = {}
    for one in runs:
        file = command.results_file(one).resolve()
        if file in seen:
            raise command.Refusal(command.USAGE, f"the same run is given twice: {seen[file]} and {one}")
        seen[file] = one
    for target in targets:
        if any(target.resolve() in (file, file.parent / _PAGE) for file in seen):
            raise command.Refusal(command.USAGE, f"{target} is a run's own report: name another file with --out")


def source(given: Path, here: Path) -> Source:
    """A run, with where its own page lies seen from the folder of ours."""
    results = command.loaded(given)
    file = command.results_file(given).absolute()
    page = file.parent / _PAGE
    near = _near(page, here)
    return Source(
        results=results,
        link=_link(near) if near is not None and page.is_file() else "",
        name=str(near.with_name(file.name)) if near is not None else str(PurePath(file.parent.name, file.name)),
    )


def _near(path: Path, here: Path) -> PurePath | None:
    """The way to a file below or beside a folder. None elsewhere: such a link breaks as soon as either is moved."""
    try:
        way = PurePath(os.path.relpath(path, here))
    except ValueError:  # another drive
        return None
    return way if way.parts.count(os.pardir) <= 1 else None


def _link(way: PurePath) -> str:
    """A relative address that can be nothing else: its colons are escaped too."""
    return "/".join(quote(os.fsencode(part), safe="") for part in way.parts)
