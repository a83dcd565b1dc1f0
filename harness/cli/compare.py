"""`coldproof compare OLD NEW`: show what changed between two runs.

Exit code: 0 nothing new; 1 a requirement is newly violated, fails in a different way or is no longer exercised, or
there is nothing to compare; 3 a file cannot be written; 4 wrong usage, or a file cannot be read.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.cli.io import loaded, write, write_stdout
from coldproof.reports.comparison.comparison import compare, exit_code
from coldproof.reports.comparison.markdown import comparison_markdown
from coldproof.reports.comparison.page import render_comparison

PURPOSE = "compare two runs: new, fixed and unchanged violations, and requirements that are no longer exercised"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("old", type=Path, metavar="OLD.json", help="results.json of the earlier run, or its folder")
    parser.add_argument("new", type=Path, metavar="NEW.json", help="results.json of the later run, or its folder")
    parser.add_argument(
        "--markdown", type=Path, metavar="FILE", help="write Markdown; without --markdown and --html it goes to stdout"
    )
    parser.add_argument("--html", type=Path, metavar="FILE", help="write one self-contained HTML page")


def run(options: argparse.Namespace) -> int:
    """Read both runs, write the requested files and return the exit code. Raises Refusal."""
    comparison = compare(loaded(options.old), loaded(options.new))
    if options.markdown is None and options.html is None:
        write_stdout(comparison_markdown(comparison))
    if options.markdown is not None:
        write(options.markdown, comparison_markdown(comparison))
    if options.html is not None:
        write(options.html, render_comparison(comparison))
    return exit_code(comparison)
