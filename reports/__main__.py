"""`python -m reports`: make the page again from a stored results.json, or print that file's JSON Schema.

Needs no engine. Whatever is wrong with what it is given is one line on stderr and exit code 4; a page that cannot be
written is exit code 3.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

import msgspec

from reports.render import render_html
from reports.schema import SCHEMA_VERSION, Results, read_results
from reports.text import one_line
from reports.write import write_text

_FAILED = 3
_USAGE = 4


class _Versioned(msgspec.Struct):
    """Only the version: a file of another one is said to be that, not to lack some field."""

    schema_version: int


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        self.exit(_USAGE, f"{self.prog}: {message}\n")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    if options.command == "schema":
        schema = msgspec.json.schema(Results)
        sys.stdout.write(json.dumps(schema, indent=2, sort_keys=True) + "\n")
        return 0
    return _render(options.results, options.output or options.results.parent / "index.html")


def _parser() -> argparse.ArgumentParser:
    parser = _Parser(prog="python -m reports", description="Views of a stored run.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    render = commands.add_parser("render", help="make index.html from a results.json")
    render.add_argument("results", type=Path, metavar="RESULTS.json")
    render.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: index.html beside RESULTS.json")
    commands.add_parser("schema", help="print the JSON Schema of results.json")
    return parser


def _render(source: Path, target: Path) -> int:
    try:
        results = _read(source)
    except (OSError, msgspec.DecodeError, UnicodeError) as problem:
        return _fail(_USAGE, f"cannot read {source}: {_reason(problem)}")
    try:
        write_text(target, render_html(results))
    except OSError as problem:
        return _fail(_FAILED, f"cannot write {target}: {_reason(problem)}")
    return 0


def _read(source: Path) -> Results:
    version = msgspec.json.decode(source.read_bytes(), type=_Versioned).schema_version
    if version != SCHEMA_VERSION:
        raise msgspec.ValidationError(f"its schema_version is {version}, this Coldproof reads {SCHEMA_VERSION}")
    return read_results(source)


def _reason(problem: Exception) -> str:
    return (problem.strerror if isinstance(problem, OSError) else None) or str(problem)


def _fail(code: int, line: str) -> int:
    sys.stderr.write(f"python -m reports: {one_line(line)}\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
