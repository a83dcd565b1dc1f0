"""`python -m reports`: make the page again from a stored results.json, compare two of them, or print their JSON Schema.

Needs no engine. Whatever is wrong with what it is given is one line on stderr and exit code 4; a page that cannot be
written is exit code 3.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from collections.abc import Sequence
from pathlib import Path

import msgspec

from reports import compare
from reports.command import FAILED, UNREADABLE, USAGE, Parser, fail, read, reason
from reports.render import render_html
from reports.schema import Results
from reports.write import write_text

# These judge again what a run saw, by the harness's own checkers. Only their names are known in this room: nothing that
# draws a report depends on them.
JUDGING = {
    "verify": ("harness.qualify.verify", "accept or refuse the bundle of a run with --profile qualify"),
    "merge": ("harness.qualify.merge", "join the shards of one run"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] and words[0] in JUDGING:
        return int(importlib.import_module(JUDGING[words[0]][0]).main(words[1:]))
    options = _parser().parse_args(words)
    if options.command == "schema":
        schema = msgspec.json.schema(Results)
        sys.stdout.write(json.dumps(schema, indent=2, sort_keys=True) + "\n")
        return 0
    if options.command == "compare":
        return compare.run(options)
    return _render(options.results, options.output or options.results.parent / "index.html")


def _parser() -> argparse.ArgumentParser:
    parser = Parser(prog="python -m reports", description="Views of stored runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    render = commands.add_parser("render", help="make index.html from a results.json")
    render.add_argument("results", type=Path, metavar="RESULTS.json")
    render.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: index.html beside RESULTS.json")
    compare.add_arguments(commands.add_parser("compare", help=compare.PURPOSE))
    for name, (_, purpose) in JUDGING.items():
        commands.add_parser(name, help=purpose)
    commands.add_parser("schema", help="print the JSON Schema of results.json")
    return parser


def _render(source: Path, target: Path) -> int:
    try:
        results = read(source)
    except UNREADABLE as problem:
        return fail(USAGE, f"cannot read {source}: {reason(problem)}")
    try:
        write_text(target, render_html(results))
    except OSError as problem:
        return fail(FAILED, f"cannot write {target}: {reason(problem)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
