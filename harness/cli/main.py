"""The command `coldproof`: the table of its subcommands.

Only the module of the subcommand that was called is imported: the modules of all of them take most of a second, which
`coldproof run` would spend for nothing.
"""

from __future__ import annotations

import importlib
import shlex
import sys
from collections.abc import Iterable, Sequence

from coldproof.harness.cli.io import USAGE, Parser, Refusal, Subcommand
from coldproof.reports.files.own_folder import FolderRefused
from coldproof.reports.format.text import one_line

SUBCOMMANDS = {  # where each one is declared, in this folder
    "run": "run.RUN",
    "replay": "run.REPLAY",
    "prove": "prove.PROVE",
    "connector": "connector.CONNECTOR",
    "cells": "listings.CELLS",
    "faults": "listings.FAULTS",
    "model": "models.MODEL",
    "findings": "findings.FINDINGS",
    "attribute": "attribute.ATTRIBUTE",
    "rejudge": "bundles.REJUDGE",
    "render": "pages.RENDER",
    "schema": "listings.SCHEMA",
    "compare": "pages.COMPARE",
    "side-by-side": "pages.SIDE_BY_SIDE",
    "merge": "bundles.MERGE",
    "verify": "bundles.VERIFY",
    "register": "register.REGISTER",
    "freeze": "freeze.FREEZE",
    "power": "power.POWER",
    "noise": "power.NOISE",
    "fleet": "fleet.FLEET",
    "history": "releases.HISTORY",
    "bisect": "releases.BISECT",
}
PASSED_ON = {"run", "replay", "prove", "connector"}  # pytest reads the arguments of these
HELP = (["-h"], ["--help"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code. Wrong usage and a refusal are one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    known = words[:1] and words[0] in SUBCOMMANDS
    options = parser(words[:1] if known else SUBCOMMANDS, for_help=words[1:2] in HELP).parse_args(protected(words))
    options.command_line = shlex.join(["coldproof", *words])
    try:
        return subcommand(options.command).run(options)
    except refusals() as problem:
        sys.stderr.write(f"coldproof {options.command}: {one_line(str(problem))}\n")
        return problem.code if isinstance(problem, Refusal) else USAGE


def refusals() -> tuple[type[Exception], ...]:
    """Return what ends a command with one line. Python calls this after an exception only: the module of UsageError
    imports all engines.
    """
    from coldproof.harness.options import UsageError

    return Refusal, UsageError, FolderRefused


def subcommand(name: str) -> Subcommand:
    """Import a subcommand's module and return the subcommand."""
    module, _, constant = SUBCOMMANDS[name].partition(".")
    found = getattr(importlib.import_module(f"coldproof.harness.cli.{module}"), constant)
    assert isinstance(found, Subcommand)
    return found


def parser(names: Iterable[str], *, for_help: bool) -> Parser:
    """Return the parser with these subcommands. `for_help`: also with the options that it only describes."""
    root = Parser(prog="coldproof", description="Prefix-cache conformance tests for inference engines.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name in names:
        command = subcommand(name)
        sentence = f"{command.purpose[0].upper()}{command.purpose[1:]}."
        added = commands.add_parser(name, help=command.purpose, description=sentence)
        for declare in (*command.arguments, *(command.described if for_help else ())):
            declare(added)
    return root


def protected(words: Sequence[str]) -> list[str]:
    """Return the words with `--` before those that pytest reads, so that argparse does not parse them."""
    if words[:1] and words[0] in PASSED_ON and words[1:2] not in HELP:
        return [words[0], "--", *words[1:]]
    return list(words)
