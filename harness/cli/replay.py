"""`coldproof replay CASE.json [options]`: run one saved case again. pytest reads the options."""

from __future__ import annotations

import argparse

from coldproof.harness.cli.run import add_run_options, run_pytest

PURPOSE = "run one saved case again on a fresh engine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the case, one argument that takes all other words, and the options that --help lists."""
    parser.usage = f"{parser.prog} CASE.json [OPTION ...]"
    parser.add_argument("case", metavar="CASE.json", help="a file in the folder cases/ of a report")
    add_run_options(parser)


def run(options: argparse.Namespace) -> int:
    """Replace this process by pytest. Does not return if that succeeds."""
    return run_pytest(["--replay", options.case, *options.words])
