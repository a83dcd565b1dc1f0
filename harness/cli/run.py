"""`coldproof run [options]`: run the suites against an engine. pytest reads everything after `run`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from coldproof import suites
from coldproof.harness.selection.command_line import declare_options, join_engine_args
from coldproof.harness.session.autoload import PLUGIN

PURPOSE = "run the suites against an engine"
SUITES = Path(suites.__file__ or "").resolve().parent


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare one argument that takes all words, and the options that --help lists."""
    parser.usage = f"{parser.prog} [OPTION ...]"
    add_run_options(parser)


def add_run_options(parser: argparse.ArgumentParser) -> None:
    """List the options of a run in --help. They are not parsed here: pytest reads them."""
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    declare_options(parser.add_argument_group("options of a run").add_argument)
    parser.epilog = "All other options are pytest's, for example -k EXPRESSION. `pytest --help` lists them."


def run(options: argparse.Namespace) -> int:
    """Replace this process by pytest. Does not return if that succeeds."""
    return run_pytest(options.words)


def run_pytest(words: Sequence[str]) -> int:
    """Replace this process by pytest on the suites, so that pytest itself handles signals and sets the exit code."""
    found = ["-p", PLUGIN, f"--rootdir={Path.cwd()}"]  # else pytest may look for its root outside the user's folder
    command = [sys.executable, "-m", "pytest", str(SUITES), *found, *map(str, join_engine_args(words))]
    sys.stdout.flush()
    os.execv(command[0], command)
