"""The command `coldproof`: the table of its subcommands.

Each subcommand is a module with `PURPOSE`, `add_arguments(parser)` and `run(options)`, which returns the exit code.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from typing import Protocol

from coldproof.harness.cli import (
    cells,
    compare,
    faults,
    fleet,
    freeze,
    merge,
    noise,
    power,
    rejudge,
    render,
    replay,
    run,
    schema,
    side_by_side,
    verify,
)
from coldproof.harness.cli.io import Parser, execute


class Subcommand(Protocol):
    """The interface of a subcommand module."""

    PURPOSE: str

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Declare the arguments."""

    def run(self, options: argparse.Namespace) -> int:
        """Do the work and return the exit code. Raises Refusal or UsageError."""


SUBCOMMANDS: dict[str, Subcommand] = {
    "run": run,
    "replay": replay,
    "cells": cells,
    "faults": faults,
    "rejudge": rejudge,
    "render": render,
    "schema": schema,
    "compare": compare,
    "side-by-side": side_by_side,
    "merge": merge,
    "verify": verify,
    "freeze": freeze,
    "power": power,
    "noise": noise,
    "fleet": fleet,
}
PASSED_ON = {"run", "replay"}  # pytest reads the arguments of these


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(protected(words))
    options.command_line = shlex.join(["coldproof", *words])
    return execute(options.command, SUBCOMMANDS[options.command].run, options)


def parser() -> Parser:
    """Return the parser with all subcommands."""
    root = Parser(prog="coldproof", description="Prefix-cache conformance tests for inference engines.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, module in SUBCOMMANDS.items():
        module.add_arguments(commands.add_parser(name, help=module.PURPOSE, description=sentence(module.PURPOSE)))
    return root


def sentence(purpose: str) -> str:
    """Return a purpose as a sentence."""
    return f"{purpose[0].upper()}{purpose[1:]}."


def protected(words: Sequence[str]) -> list[str]:
    """Return the words with `--` before those that pytest reads, so that argparse does not parse them."""
    if words[:1] and words[0] in PASSED_ON and words[1:2] not in (["-h"], ["--help"]):
        return [words[0], "--", *words[1:]]
    return list(words)
