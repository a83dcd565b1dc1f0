"""`coldproof merge`, `verify` and `rejudge`: merge shards, accept qualifications, re-evaluate stored examples.

Exit code of `verify` and `rejudge`: 0 accepted, or all results are as recorded; 1 refused, or some results differ or
could not be read, with one line for each reason; 4 wrong usage. That of `merge` is the merged run's; 1 also if the
shards are refused; 3 the report cannot be written; 4 wrong usage.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from coldproof.harness.cli.io import (
    USAGE,
    Refusal,
    Subcommand,
    argument,
    indented,
    interpreting,
    reason_of,
    write_stdout,
    writing,
)
from coldproof.harness.release.bundle.merge import merge_shards, read_shard, refusals
from coldproof.harness.release.bundle.run_folder import EVENTS, Part, part_folders
from coldproof.harness.release.bundle.verify import verify
from coldproof.harness.release.requirements import suites
from coldproof.harness.schema.exit_codes import EXIT_FAILED, EXIT_OK
from coldproof.harness.schema.stored_files import UnreadableFile
from coldproof.reports.format.text import many

FOLDER = "the --report-dir of a run, or the --out of merge"


NEW_FOLDER = argument("--out", type=Path, required=True, metavar="DIR", help="a new or empty folder")


def check_new(out: Path) -> None:
    """Raise Refusal if there is something at `out` that would be overwritten."""
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise Refusal(USAGE, f"--out {out} exists and will not be overwritten; choose a new folder")


def check_bundle(bundle: Path) -> None:
    """Raise Refusal if there is no folder."""
    if not bundle.is_dir():
        raise Refusal(USAGE, f"{bundle} is not a folder; give the --report-dir of a run with --profile qualify")


def merge_runs(options: argparse.Namespace) -> int:
    """Refuse or merge the shards, and return the exit code. Raises Refusal or UsageError."""
    out: Path = options.out
    check_new(out)
    logs = [read_shard(folder) for folder in options.shards]
    with interpreting(", ".join(map(str, options.shards))):
        reasons = list(map(str, refusals(logs)))
        if reasons:
            write_stdout(indented([f"REFUSED: {many(len(reasons), 'reason')}", *reasons]))
            return EXIT_FAILED
        with writing(out):
            results = merge_shards(options.shards, logs, out)
    write_stdout(f"{results.headline}\nreport: {out / 'index.html'}\n")
    return results.exit_code


MERGE = Subcommand(
    "merge the shards of one run",
    merge_runs,
    argument("shards", type=Path, nargs="+", metavar="DIR", help="the --report-dir of a run with --shard"),
    NEW_FOLDER,
)


def verify_bundle(options: argparse.Namespace) -> int:
    """Verify a bundle: complete, unaltered, and with all required evidence. Returns the exit code.

    Raises Refusal or UsageError.
    """
    bundle: Path = options.bundle
    check_bundle(bundle)
    found = verify(bundle, allowed_signers=options.allowed_signers)
    lines = found.summary if found.accepted else list(map(str, found.reasons))
    word = "ACCEPTED" if found.accepted else "REFUSED"
    count = "" if found.accepted else f", {len(lines)} reason{'s' * (len(lines) != 1)}"
    write_stdout(indented([f"{word}: {bundle}{count}", *lines]))
    return EXIT_OK if found.accepted else EXIT_FAILED


ALLOWED_SIGNERS = argument(
    "--allowed-signers",
    type=Path,
    metavar="FILE",
    help="accept only bundles that a key of this file has signed (ALLOWED SIGNERS in ssh-keygen(1))",
)
VERIFY = Subcommand(
    "accept or refuse the bundle of a qualification (--profile qualify)",
    verify_bundle,
    argument("bundle", type=Path, metavar="BUNDLE", help=FOLDER),
    ALLOWED_SIGNERS,
)


def rejudge(options: argparse.Namespace) -> int:
    """Re-evaluate all examples, print the differences and return the exit code. Raises Refusal or UsageError.

    Use it to check a changed checker against any earlier run.
    """
    folders = part_folders(options.folder)
    if not all((part / EVENTS).is_file() for part in folders):
        raise Refusal(USAGE, f"{options.folder} has no {EVENTS}; give the --report-dir of a run")
    try:
        parts = [Part(one, suites.list_of_suites()) for one in folders]
    except (UnreadableFile, OSError) as problem:
        raise Refusal(USAGE, f"cannot read {options.folder}: {reason_of(problem)}") from problem
    lines = [problem for part in parts for problem in part.problems]
    rejudged = [found for part in parts for found in part.rejudged.items()]
    for place, seen in sorted(rejudged, key=lambda pair: str(pair[0])):
        if seen.changed:
            examples = f"{seen.changed} of {many(seen.examples, 'example')} differ"
            lines.append(f"{place}: {examples}; the first: {seen.first_difference}")
    said = (
        f"{many(sum(seen.examples for _, seen in rejudged), 'example')} with "
        f"{many(sum(seen.requests for _, seen in rejudged), 'request')} re-evaluated; "
        f"different results: {sum(seen.changed for _, seen in rejudged)}"
    )
    write_stdout(indented([said, *lines]))
    return EXIT_FAILED if lines else EXIT_OK


REJUDGE = Subcommand(
    "re-evaluate the stored examples of a run with the current checkers, without an engine",
    rejudge,
    argument("folder", type=Path, metavar="FOLDER", help=FOLDER),
)
