"""`coldproof run [options]` and `coldproof replay CASE.json [options]`: run the suites against an engine.

pytest reads everything after the name of the command.
"""

from __future__ import annotations

import argparse
import functools
import os
import sys
from collections.abc import Sequence

from coldproof.harness.cli.io import Subcommand, argument
from coldproof.harness.option_words import join_values
from coldproof.harness.session.pytest_command import pytest_command


def words_for_pytest(parser: argparse.ArgumentParser, usage: str) -> None:
    """Declare one argument that takes all words for pytest."""
    parser.usage = f"{parser.prog} {usage}"
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)


def run_options(parser: argparse.ArgumentParser) -> None:
    """List the options of a run in --help. They are not parsed here."""
    from coldproof.harness.option_table import OPTIONS  # brings all engines, which the process of pytest imports

    group = parser.add_argument_group("options of a run")
    for name, settings in OPTIONS.items():
        group.add_argument(name, **settings)
    parser.epilog = "All other options are pytest's, for example -k EXPRESSION. `pytest --help` lists them."


def run_pytest(words: Sequence[str]) -> int:
    """Replace this process by pytest on the suites, so that pytest itself handles signals and sets the exit code.

    Does not return if that succeeds.
    """
    command = pytest_command(map(str, join_values(words)))
    sys.stdout.flush()
    os.execv(command[0], command)


RUN = Subcommand(
    "run the suites against an engine",
    lambda options: run_pytest(options.words),
    functools.partial(words_for_pytest, usage="[OPTION ...]"),
    described=[run_options],
)
REPLAY = Subcommand(
    "run one saved case again on a fresh engine",
    lambda options: run_pytest([f"--replay={options.case}", *options.words]),
    argument("case", metavar="CASE.json", help="a file in the folder cases/ of a report"),
    functools.partial(words_for_pytest, usage="CASE.json [OPTION ...]"),
    described=[run_options],
)
