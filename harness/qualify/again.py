"""`python -m reports rejudge FOLDER`: what do the checkers of this checkout say of the examples that a run stored?

For whoever changed a checker, or doubts one: no engine is asked, every stored answer is looked at once more, of any run
and not only of a qualification. Exit code: 0 all came out as recorded; 1 some did not, or could not be read; 4 usage.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

from harness.options import UsageError
from harness.qualify.frozen import current
from harness.qualify.part import EVENTS, Part, part_folders
from reports import command
from reports.assemble import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from reports.text import many, one_line


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = command.Parser(
        prog="python -m reports rejudge", description="Judges the stored examples of a run again, without its engine."
    )
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the --report-dir of a run, or what merge made")
    return command.run(work, parser.parse_args(arguments))


def work(options: argparse.Namespace) -> int:
    """Judge all, and say what came out otherwise. Raises Refusal."""
    folder: Path = options.folder
    folders = part_folders(folder)
    if not all((part / EVENTS).is_file() for part in folders):
        raise command.Refusal(EXIT_USAGE, f"{folder} has no {EVENTS}: rejudge wants the --report-dir of a run")
    try:
        parts = [Part(one, current()[0]) for one in folders]
    except UsageError as problem:
        raise command.Refusal(EXIT_USAGE, str(problem)) from problem
    lines = [problem for part in parts for problem in part.problems]
    for place, seen in sorted((found for part in parts for found in part.seen.items()), key=lambda pair: str(pair[0])):
        if seen.otherwise:
            lines.append(
                f"{place}: {seen.otherwise} of {many(seen.examples, 'example')} otherwise, the first: "
                f"{seen.first_difference}"
            )
    seen_in_all = [seen for part in parts for seen in part.seen.values()]
    examples, requests = sum(one.examples for one in seen_in_all), sum(one.requests for one in seen_in_all)
    said = f"{many(examples, 'example')} with {many(requests, 'request')} judged again: "
    said += f"{sum(one.otherwise for one in seen_in_all)} came out otherwise"
    command.tell("\n  ".join([said, *map(one_line, lines)]) + "\n")
    return EXIT_FAILED if lines else EXIT_OK
