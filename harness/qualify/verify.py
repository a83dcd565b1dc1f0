"""`python -m reports verify BUNDLE`: is this a complete and unaltered qualification, and does it show what it must?

Needs no engine, no network and nothing but a checkout of the version that made the bundle. Nothing in the bundle is
believed that can be found again: files by their digests, coverage by the frozen list, findings by judging every
example again, verdicts by what follows, results and pages by drawing them again. What cannot be found again is whether
the engine really gave those answers: for that a bundle is signed (docs/qualifying.md).

Exit code: 0 accepted; 1 refused, each reason on a line; 4 usage.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from harness.options import QUALIFY, UsageError
from harness.qualify.accepted import accepted
from harness.qualify.coverage import check_coverage
from harness.qualify.frozen import FrozenList, current
from harness.qualify.manifest import NAME, broken, read_manifest
from harness.qualify.outcome import check_outcome, check_views
from harness.qualify.part import Part, part_folders
from harness.qualify.reason import Doubt, Reason, altered, left_out, not_shown, other_version
from harness.qualify.record import KNOWN_ISSUES, digest_of
from harness.qualify.sources import sources_digest
from harness.qualify.united import results_of
from harness.qualify.verdicts import check_verdicts
from reports import command
from reports.assemble import EXIT_FAILED, EXIT_OK, EXIT_USAGE
from reports.text import one_line

Problem = (LookupError, TypeError, ValueError, OSError, UsageError)  # what reading an altered file may raise


class Verification(msgspec.Struct):
    """The outcome: why not, or where nothing speaks against it what was accepted."""

    reasons: list[Reason]
    summary: list[str]

    @property
    def accepted(self) -> bool:
        """Whether nothing speaks against it."""
        return not self.reasons


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    parser = command.Parser(
        prog="python -m reports verify", description="Accepts or refuses the bundle of a qualification."
    )
    parser.add_argument("bundle", type=Path, metavar="BUNDLE", help="the --report-dir of a run, or what merge made")
    return command.run(work, parser.parse_args(arguments))


def work(options: argparse.Namespace) -> int:
    """Verify, and say what came of it. Raises Refusal."""
    bundle: Path = options.bundle
    if not bundle.is_dir():
        line = f"{bundle} is no folder: verify wants the --report-dir of a run with --profile qualify"
        raise command.Refusal(EXIT_USAGE, line)
    found = verify(bundle)
    lines = found.summary if found.accepted else list(map(str, found.reasons))
    word = "ACCEPTED" if found.accepted else "REFUSED"
    many = "" if found.accepted else f", {len(lines)} reason{'s' * (len(lines) != 1)}"
    command.tell("\n  ".join([f"{word}: {bundle}{many}", *(one_line(line) for line in lines)]) + "\n")
    return EXIT_OK if found.accepted else EXIT_FAILED


def verify(bundle: Path) -> Verification:
    """All that speaks against a bundle. Raises UsageError only where this checkout has no frozen list."""
    frozen, digest = current()
    reasons = list(check_files(bundle))
    folders = part_folders(bundle)
    try:
        reasons += check_versions([Part(folder, frozen, judge=False) for folder in folders], frozen, digest)
        if any(reason.doubt is Doubt.OTHER_VERSION for reason in reasons):
            return Verification(reasons, [])  # what today's checkers say of another version's run means nothing
        parts = [Part(folder, frozen) for folder in folders]
        for part in parts:
            reasons += check_part(part)
        reasons += check_coverage(parts, frozen)
        results = results_of([part.folder for part in parts])
        reasons += check_views(bundle, results)
        reasons += check_outcome(results, parts)
        return Verification(sorted(set(reasons), key=order), accepted(bundle, results, parts))
    except Problem as problem:
        reasons.append(altered(f"it cannot be read as a run: {type(problem).__name__}: {problem}"))
        return Verification(reasons, [])


def order(reason: Reason) -> tuple[int, str]:
    """Alterations first."""
    return list(Doubt).index(reason.doubt), reason.sentence


def check_files(bundle: Path) -> Iterator[Reason]:
    """Every file is as it was sealed; a merged bundle's shards are so each for itself too."""
    folders = part_folders(bundle)
    for folder in folders if folders == [bundle] else [bundle, *folders]:
        where = "" if folder == bundle else f"{folder.relative_to(bundle).as_posix()}: "
        try:
            manifest = read_manifest(folder)
        except OSError:
            yield left_out(f"{where}there is no {NAME}: this is no bundle of --profile qualify")
        except msgspec.MsgspecError as problem:
            yield altered(f"{where}{NAME} is no manifest of this version: {problem}")
        else:
            for line in broken(folder, manifest):
                yield altered(f"{where}{line}")


def check_versions(parts: list[Part], frozen: FrozenList, digest: str) -> Iterator[Reason]:
    """All of it was made by the suite that verifies it."""
    sources = sources_digest()
    for part in parts:
        made = part.qualification
        if made is None:
            yield left_out(f"{part.name} has no record of a qualification: it was not made with --profile qualify")
            continue
        commit = f": check out {made.commit}" if made.commit else ""
        if made.requirements != frozen.version:
            yield other_version(
                f"{part.name} is of the requirements {made.requirements}, this checkout's are {frozen.version}{commit}"
            )
        elif made.requirements_sha256 != digest:
            yield other_version(f"{part.name} has another list under the name of the requirements {frozen.version}")
        if made.sources_sha256 != sources:
            yield other_version(
                f"{part.name} was made by sources with the digest {made.sources_sha256[:12]}, this checkout's are "
                f"{sources[:12]}{commit}"
            )


def check_part(part: Part) -> Iterator[Reason]:
    """One run by itself."""
    yield from (altered(f"{part.name}: {line}") for line in part.problems)
    start, finish, made = part.started, part.last("run_finished"), part.qualification
    if start.get("profile") != QUALIFY:
        yield not_shown(f"{part.name} was made with --profile {start.get('profile')}, not {QUALIFY}")
    if start.get("fault"):
        yield not_shown(f"{part.name} is of an engine that was broken on purpose: {start['fault'].get('name')}")
    for verdict in start.get("allowed", ()):
        yield not_shown(f"{part.name} lets {verdict} pass: that is no qualification")
    if not finish.get("complete"):
        yield left_out(f"{part.name} did not come to its end")
    if made is not None and made.known_issues_sha256 != digest_of(part.folder / KNOWN_ISSUES):
        there = (part.folder / KNOWN_ISSUES).is_file()
        yield (altered if there else left_out)(f"{part.name}: {KNOWN_ISSUES} is not the file that the run was given")
    yield from check_waivers(part)
    yield from check_verdicts(part)


def check_waivers(part: Part) -> Iterator[Reason]:
    """What became of each known issue follows from the cases and verdicts."""
    told = part.last("waivers")
    if not told:
        return
    results = results_of([part.folder])
    try:
        again = part.waivers(told).report(results.cases, results.requirements)
    except UsageError as problem:
        yield altered(f"{part.name}: {problem}")
        return
    if msgspec.to_builtins(again) != told["waivers"]:
        yield altered(f"{part.name}: what it says of the known issues does not follow from its cases")


if __name__ == "__main__":
    sys.exit(main())
