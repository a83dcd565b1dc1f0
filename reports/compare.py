"""`python -m reports compare OLD NEW`, also `python -m reports.compare`: what is new, fixed, still there, not tried.

Exit code: 0 nothing new; 1 something newly violated, failing otherwise than before or no longer exercised, or nothing
to compare; 3 a file cannot be written; 4 usage, or a file cannot be read.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from reports import command
from reports.comparison import compare, exit_code
from reports.comparison_markdown import comparison_markdown
from reports.comparison_page import render_comparison

PURPOSE = "what is new, fixed, still there or no longer exercised in one run against an earlier one"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command by its own name; returns the exit code."""
    parser = command.Parser(prog="python -m reports.compare", description=f"Says {PURPOSE}.")
    add_arguments(parser)
    return command.run(run, parser.parse_args(arguments))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's arguments, for its own parser and for that of `python -m reports`."""
    parser.add_argument("old", type=Path, metavar="OLD.json", help="results.json of the earlier run, or its folder")
    parser.add_argument("new", type=Path, metavar="NEW.json", help="results.json of the run in question, or its folder")
    parser.add_argument("--markdown", type=Path, metavar="FILE", help="default, without --html either: on stdout")
    parser.add_argument("--html", type=Path, metavar="FILE", help="one self-contained page")


def run(options: argparse.Namespace) -> int:
    """Read both, write what was asked for; returns the exit code. Raises command.Refusal."""
    comparison = compare(command.loaded(options.old), command.loaded(options.new))
    if options.markdown is None and options.html is None:
        command.tell(comparison_markdown(comparison))
    if options.markdown is not None:
        command.write(options.markdown, comparison_markdown(comparison))
    if options.html is not None:
        command.write(options.html, render_comparison(comparison))
    return exit_code(comparison)


if __name__ == "__main__":
    sys.exit(main())
