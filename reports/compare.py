"""`python -m reports compare OLD NEW`, also `python -m reports.compare`: what is new, fixed, still there, not tried.

Exit code: 0 nothing new; 1 something newly violated, failing otherwise than before or no longer exercised, or nothing
to compare; 3 a file cannot be written; 4 usage, or a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reports.command import FAILED, UNREADABLE, USAGE, Parser, fail, read, reason
from reports.comparison import Comparison, compare, exit_code
from reports.comparison_markdown import comparison_markdown
from reports.comparison_page import render_comparison
from reports.write import write_text

PURPOSE = "what is new, fixed, still there or no longer exercised in one run against an earlier one"
_STDOUT = 1


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command by its own name; returns the exit code."""
    parser = Parser(prog="python -m reports.compare", description=f"Says {PURPOSE}.")
    add_arguments(parser)
    return run(parser.parse_args(arguments))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments, for its own parser and for that of `python -m reports`."""
    parser.add_argument("old", type=Path, metavar="OLD.json", help="results.json of the earlier run")
    parser.add_argument("new", type=Path, metavar="NEW.json", help="results.json of the run in question")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="default, without --html either: on stdout")
    parser.add_argument("--html", type=Path, metavar="FILE", help="one self-contained page")


def run(options: argparse.Namespace) -> int:
    """Read both, write what was asked for; returns the exit code."""
    runs = []
    for source in (options.old, options.new):
        try:
            runs.append(read(source))
        except UNREADABLE as problem:
            return fail(USAGE, f"cannot read {source}: {reason(problem)}")
    comparison = compare(*runs)
    return _write(comparison, markdown=options.markdown, html=options.html) or exit_code(comparison)


def _write(comparison: Comparison, *, markdown: Path | None, html: Path | None) -> int:
    target: Path | str = "to stdout"
    try:
        if markdown is None and html is None:
            _tell(comparison_markdown(comparison))
        if markdown is not None:
            target = markdown
            write_text(markdown, comparison_markdown(comparison))
        if html is not None:
            target = html
            write_text(html, render_comparison(comparison))
    except OSError as problem:
        return fail(FAILED, f"cannot write {target}: {reason(problem)}")
    return 0


def _tell(text: str) -> None:
    """UTF-8 on stdout whatever the locale is. Past Python's own stream, whose buffer would fail again at the end."""
    with open(_STDOUT, "wb", closefd=False) as out:
        out.write(text.encode())


if __name__ == "__main__":
    sys.exit(main())
