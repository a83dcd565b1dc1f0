"""`python -m reports`: make the page again from a stored results.json, compare two of them, set several engines side by
side, or print their JSON Schema.

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

from reports import command, compare, side_by_side
from reports.render import render_html
from reports.schema import Results

# These judge again what a run saw, by the harness's own checkers. Only their names are known in this room: nothing that
# draws a report depends on them.
JUDGING = {
    "verify": ("harness.qualify.verify", "accept or refuse the bundle of a run with --profile qualify"),
    "rejudge": ("harness.qualify.again", "judge the stored examples of a run again, without its engine"),
    "merge": ("harness.qualify.merge", "join the shards of one run"),
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    words = list(sys.argv[1:] if arguments is None else arguments)
    if words[:1] and words[0] in JUDGING:
        return int(importlib.import_module(JUDGING[words[0]][0]).main(words[1:]))
    options = _parser().parse_args(words)
    return command.run(options.run, options)


def _parser() -> argparse.ArgumentParser:
    parser = command.Parser(prog="python -m reports", description="Views of stored runs.")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    render = commands.add_parser("render", help="make index.html from a results.json")
    render.add_argument("results", type=Path, metavar="RESULTS.json", help="or a report folder")
    render.add_argument("-o", "--output", type=Path, metavar="FILE", help="default: index.html beside RESULTS.json")
    render.set_defaults(run=_render)
    for name, module in (("compare", compare), ("side-by-side", side_by_side)):
        one = commands.add_parser(name, help=module.PURPOSE, description=f"Says {module.PURPOSE}.")
        module.add_arguments(one)
        one.set_defaults(run=module.run)
    for name, (_, purpose) in JUDGING.items():
        commands.add_parser(name, help=purpose)
    commands.add_parser("schema", help="print the JSON Schema of results.json").set_defaults(run=_schema)
    return parser


def _render(options: argparse.Namespace) -> int:
    results = command.loaded(options.results)
    beside = command.results_file(options.results).parent / "index.html"
    command.write(options.output or beside, render_html(results))
    return 0


def _schema(_options: argparse.Namespace) -> int:
    command.tell(json.dumps(msgspec.json.schema(Results), indent=2, sort_keys=True) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
