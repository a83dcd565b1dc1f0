"""`coldproof attribute CASE...`: tells to which known cause each saved case belongs, by replaying it under repairs.

A case belongs to a cause if it vanishes with that cause's repair alone and comes back without it. Exit code: 0 every
case belongs to a known cause; 1 one does not; 3 one could not be replayed; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.case.finding_records import read_records
from coldproof.harness.case.load import load_case
from coldproof.harness.case.tested_engine import family_of
from coldproof.harness.cli.io import Subcommand, argument, say
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import TRACE
from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_HARNESS, EXIT_OK
from coldproof.harness.session.causes.local_engine import engine_of_case
from coldproof.harness.session.causes.saved_replays import SavedReplays


def run(options: argparse.Namespace) -> int:
    """Attribute each case, print a line for each, and return the exit code. Raises UsageError."""
    replays = SavedReplays()
    # With the whole folder given, the traces beside the cases are left out; alone, one is refused as no case.
    cases = [path for path in options.cases if not path.name.endswith(TRACE)] or options.cases
    found = [attributed(path, replays) for path in cases]
    if any(one.basis is Basis.NOT_RUN for one in found):
        return EXIT_HARNESS
    return EXIT_OK if all(one.is_known for one in found) else EXIT_FAILED


def attributed(path: Path, replays: SavedReplays) -> Attribution:
    """Return the attribution of one case, and print it. Raises UsageError for a file that is no case.

    A case of a server that was attached to is replayed on an engine that Coldproof starts, if it is of the release.
    """
    case, workload = load_case(path, follow=True)
    records = [one for one in read_records().values() if one.engine == family_of(case)]
    found = replays.attribution(case, workload, records, engine_of_case(case))
    say(f"{case.id}: {found.finding}: {found.sentence}" if found.is_known else f"{case.id}: {found.sentence}")
    return found


ATTRIBUTE = Subcommand(
    "tell to which known cause saved cases belong, by replaying them under repairs",
    run,
    argument("cases", type=Path, nargs="+", metavar="CASE.json", help="files in the folder cases/ of a report"),
)
