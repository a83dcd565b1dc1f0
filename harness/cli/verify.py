"""`coldproof verify BUNDLE`: accept or refuse a qualification: complete, unaltered, and with all required evidence.

Exit code: 0 accepted; 1 refused, with one line for each reason; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.cli.io import USAGE, Refusal, indented, write_stdout
from coldproof.harness.release.bundle.verify import verify
from coldproof.reports.assemble.assemble import EXIT_FAILED, EXIT_OK

PURPOSE = "accept or refuse the bundle of a qualification (--profile qualify)"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the --report-dir of a run, or the --out of merge")


def run(options: argparse.Namespace) -> int:
    """Verify the bundle, print the result and return the exit code. Raises Refusal or UsageError."""
    bundle: Path = options.bundle
    if not bundle.is_dir():
        raise Refusal(USAGE, f"{bundle} is not a folder; give the --report-dir of a run with --profile qualify")
    found = verify(bundle)
    lines = found.summary if found.accepted else list(map(str, found.reasons))
    word = "ACCEPTED" if found.accepted else "REFUSED"
    many = "" if found.accepted else f", {len(lines)} reason{'s' * (len(lines) != 1)}"
    write_stdout(indented([f"{word}: {bundle}{many}", *lines]))
    return EXIT_OK if found.accepted else EXIT_FAILED
