"""The command `coldproof`: the table of its subcommands."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence

from coldproof.harness.cli import (
    attribute,
    bundles,
    connector,
    findings,
    fleet,
    freeze,
    listings,
    models,
    pages,
    power,
    register,
    releases,
    run,
)
from coldproof.harness.cli.io import USAGE, Parser, Refusal
from coldproof.harness.options import UsageError
from coldproof.reports.files.own_folder import FolderRefused
from coldproof.reports.format.text import one_line

SUBCOMMANDS = {
    "run": run.RUN,
    "replay": run.REPLAY,
    "connector": connector.CONNECTOR,
    "cells": listings.CELLS,
    "faults": listings.FAULTS,
    "model": models.MODEL,
    "findings": findings.FINDINGS,
    "attribute": attribute.ATTRIBUTE,
    "rejudge": bundles.REJUDGE,
    "render": pages.RENDER,
    "schema": listings.SCHEMA,
    "compare": pages.COMPARE,
    "side-by-side": pages.SIDE_BY_SIDE,
    "merge": bundles.MERGE,
    "verify": bundles.VERIFY,
    "register": register.REGISTER,
    "freeze": freeze.FREEZE,
    "power": power.POWER,
    "noise": power.NOISE,
    "fleet": fleet.FLEET,
    "history": releases.HISTORY,
    "bisect": releases.BISECT,
}
PASSED_ON = {"run", "replay", "connector"}  # pytest reads the arguments of these


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one subcommand and return its exit code. Wrong usage and a refusal are one line on stderr."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    options = parser().parse_args(protected(words))
    options.command_line = shlex.join(["coldproof", *words])
    try:
        return SUBCOMMANDS[options.command].run(options)
    except (Refusal, UsageError, FolderRefused) as problem:
        sys.stderr.write(f"coldproof {options.command}: {one_line(str(problem))}\n")
        return problem.code if isinstance(problem, Refusal) else USAGE


def parser() -> Parser:
    """Return the parser with all subcommands."""
    root = Parser(prog="coldproof", description="Prefix-cache conformance tests for inference engines.")
    commands = root.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, command in SUBCOMMANDS.items():
        sentence = f"{command.purpose[0].upper()}{command.purpose[1:]}."
        added = commands.add_parser(name, help=command.purpose, description=sentence)
        for declare in command.arguments:
            declare(added)
    return root


def protected(words: Sequence[str]) -> list[str]:
    """Return the words with `--` before those that pytest reads, so that argparse does not parse them."""
    if words[:1] and words[0] in PASSED_ON and words[1:2] not in (["-h"], ["--help"]):
        return [words[0], "--", *words[1:]]
    return list(words)
