"""`coldproof attribute CASE...`: tells to which known cause each saved case belongs, by replaying it under repairs.

A case belongs to a cause if it vanishes with that cause's repair alone and comes back without it. Exit code: 0 every
case belongs to a known cause; 1 one does not; 3 one could not be replayed; 4 wrong usage.
"""

from __future__ import annotations

import argparse
import subprocess
from pathlib import Path

from coldproof.harness.case.attribution import Candidates, by_repairs, by_signature, tries_of
from coldproof.harness.case.finding_records import read_records
from coldproof.harness.case.load import load_case
from coldproof.harness.case.repairs import KNOWN, NONE, chosen_repairs
from coldproof.harness.case.replay_command import replay_options
from coldproof.harness.cli.io import Subcommand, argument, say
from coldproof.harness.option_table import option_words
from coldproof.harness.schema.attribution import Attribution, Basis
from coldproof.harness.schema.case import TRACE, Case
from coldproof.harness.schema.exit_codes import CONCLUDED, EXIT_FAILED, EXIT_HARNESS, EXIT_OK
from coldproof.harness.schema.findings import ReplayResult
from coldproof.harness.schema.results import results_in
from coldproof.harness.session.causes.local_engine import (
    NOT_INSTALLED,
    family_of,
    installed_release,
    same_release,
    tested_engine,
)
from coldproof.harness.session.pytest_command import pytest_command
from coldproof.harness.workload.steps import Workload
from coldproof.reports.assemble.causes import fingerprint

ROUNDS = 3  # of a case that takes luck; each has several replays
LONGEST_NAME = 100


def run(options: argparse.Namespace) -> int:
    """Attribute each case, print a line for each, and return the exit code. Raises UsageError."""
    found = [attributed(path, options.report_dir) for path in options.cases if not path.name.endswith(TRACE)]
    if any(one.basis is Basis.NOT_RUN for one in found):
        return EXIT_HARNESS
    return EXIT_OK if all(one.is_known for one in found) else EXIT_FAILED


def attributed(path: Path, folder: Path) -> Attribution:
    """Return the attribution of one case, and print it. Raises UsageError for a file that is no case."""
    case, workload = load_case(path, follow=True)
    found = attribution_of(case, workload, path, folder / case.id)
    say(f"{case.id}: {found.finding}: {found.sentence}" if found.is_known else f"{case.id}: {found.sentence}")
    return found


def attribution_of(case: Case, workload: Workload, path: Path, folder: Path) -> Attribution:
    """Return the attribution of a case, by repairs where its engine takes some. `folder`: for reports of replays.

    A case of a server that was attached to is replayed on an engine that Coldproof starts, if it is of the release.
    """
    spec, family = tested_engine(case), family_of(case)
    records = [one for one in read_records().values() if one.engine == family]
    if spec is None or spec.repairs is None:
        return by_signature(case, records, f"{case.engine} takes no repairs")
    local = spec.name != case.engine
    if local and not same_release(installed_release(spec), case.engine_version):
        return by_signature(case, records, NOT_INSTALLED)
    return by_repairs(
        case,
        Candidates.of(case, records, chosen_repairs(spec.name, KNOWN)),
        lambda names: replayed(case, path, folder, ",".join(names) or NONE),
        basis=Basis.LOCAL if local else Basis.REPAIR,
        rounds=ROUNDS if tries_of(case, workload) > 1 else 1,
    )


def replayed(case: Case, path: Path, folder: Path, repairs: str) -> ReplayResult:
    """Replay a case under repairs, and return how that ended."""
    report = (folder / folder_name(repairs)).absolute()
    words = option_words(replay=path, diagnose="none", repairs=repairs, report_dir=report)
    command = pytest_command(["-q", *words, *replay_options(case.layer, case.oracle, case.engine_config)])
    code = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False).returncode
    results = results_in(report)
    if code not in CONCLUDED or results is None or not results.totals["examples"]:
        return ReplayResult.NOT_RUN
    if code == EXIT_OK:
        return ReplayResult.PASSES
    same = any(one.signature == case.signature for one in results.cases)
    return ReplayResult.FAILS if same else ReplayResult.OTHERWISE


def folder_name(repairs: str) -> str:
    """Return the name of the folder with the report of a replay."""
    name = repairs.replace("/", "-").replace(",", "+")
    return name if len(name) <= LONGEST_NAME else f"{1 + name.count('+')}-repairs-{fingerprint(name)}"


ATTRIBUTE = Subcommand(
    "tell to which known cause saved cases belong, by replaying them under repairs",
    run,
    argument("cases", type=Path, nargs="+", metavar="CASE.json", help="files in the folder cases/ of a report"),
    argument(
        "--report-dir",
        type=Path,
        default=Path("coldproof-report/attribution"),
        metavar="DIR",
        help="folder for the reports of the replays (default: coldproof-report/attribution)",
    ),
)
