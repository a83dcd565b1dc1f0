"""`coldproof rejudge FOLDER`: re-evaluate the stored examples of a run with the current checkers, without an engine.

Use it to check a changed checker against any earlier run. Exit code: 0 all results are as recorded; 1 some differ, or
could not be read; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.cli.io import USAGE, Refusal, indented, write_stdout
from coldproof.harness.release.bundle.run_folder import EVENTS, Part, part_folders
from coldproof.harness.release.requirements.frozen import current_list
from coldproof.reports.assemble.assemble import EXIT_FAILED, EXIT_OK
from coldproof.reports.format.text import many

PURPOSE = "re-evaluate the stored examples of a run with the current checkers, without an engine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="the --report-dir of a run, or the --out of merge")


def run(options: argparse.Namespace) -> int:
    """Re-evaluate all examples, print the differences and return the exit code. Raises Refusal or UsageError."""
    folder: Path = options.folder
    folders = part_folders(folder)
    if not all((part / EVENTS).is_file() for part in folders):
        raise Refusal(USAGE, f"{folder} has no {EVENTS}; give the --report-dir of a run")
    parts = [Part(one, current_list()[0]) for one in folders]
    lines = [problem for part in parts for problem in part.problems]
    for place, seen in sorted(
        (found for part in parts for found in part.rejudged.items()), key=lambda pair: str(pair[0])
    ):
        if seen.changed:
            lines.append(
                f"{place}: {seen.changed} of {many(seen.examples, 'example')} differ; the first: "
                f"{seen.first_difference}"
            )
    seen_in_all = [seen for part in parts for seen in part.rejudged.values()]
    examples, requests = sum(one.examples for one in seen_in_all), sum(one.requests for one in seen_in_all)
    said = f"{many(examples, 'example')} with {many(requests, 'request')} re-evaluated; "
    said += f"different results: {sum(one.changed for one in seen_in_all)}"
    write_stdout(indented([said, *lines]))
    return EXIT_FAILED if lines else EXIT_OK
