"""`coldproof cells [--engine NAME]`: print the engine configurations."""

from __future__ import annotations

import argparse

from coldproof.harness.cli.io import write_stdout
from coldproof.harness.selection.cells import format_cells

PURPOSE = "print the engine configurations that --cells takes"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("--engine", metavar="NAME", help="only the configurations of this engine")


def run(options: argparse.Namespace) -> int:
    """Print the cells and return the exit code. Raises Refusal or UsageError."""
    write_stdout(format_cells(options.engine) + "\n")
    return 0
