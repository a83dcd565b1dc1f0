"""Verifies a bundle: whether it is a complete and unaltered qualification, and whether the engine passed it.

Verification needs no engine and no network, only a checkout of the version that made the bundle. Everything that can be
recomputed is recomputed: file digests, coverage of the frozen list, the findings of every stored example, the verdicts,
and the results and pages. Whether the engine really gave the recorded answers, and whether cases vanished with repairs
as the bundle says, cannot be recomputed. Sign the bundle for that (docs/qualifying.md).
"""

from __future__ import annotations

import functools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coldproof.harness.case.finding_records import read_findings, read_records
from coldproof.harness.options import QUALIFY, UsageError
from coldproof.harness.release.bundle.check_attributions import on_trust
from coldproof.harness.release.bundle.check_coverage import check_coverage
from coldproof.harness.release.bundle.check_events import check_events
from coldproof.harness.release.bundle.check_histories import check_histories, check_shared_nonces
from coldproof.harness.release.bundle.check_outcome import check_outcome, check_views
from coldproof.harness.release.bundle.check_verdicts import check_verdicts
from coldproof.harness.release.bundle.merge import bundle_results
from coldproof.harness.release.bundle.refusal import (
    Reason,
    RefusalKind,
    altered,
    left_out,
    not_accepted,
    not_shown,
    other_version,
)
from coldproof.harness.release.bundle.run_folder import Part, part_folders
from coldproof.harness.release.bundle.signature import Signature, SignatureState, check_signature
from coldproof.harness.release.requirements.frozen import FrozenList, current_list, read_frozen
from coldproof.harness.release.run.attestation import attestation_problem
from coldproof.harness.release.run.manifest import ATTESTATION, NAME, manifest_differences, read_manifest
from coldproof.harness.release.run.record import KNOWN_ISSUES, Qualification, digest_of
from coldproof.harness.release.run.sources import sources_digest
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.stored_files import MALFORMED, UnreadableFile, check_files_below
from coldproof.reports.format.text import duration

Problem = (*MALFORMED, OSError, UsageError)  # errors that reading an altered file may raise


class Verification(msgspec.Struct):
    """The result: the reasons for a refusal, or the summary of an accepted bundle; and what its signature shows."""

    reasons: list[Reason]
    summary: list[str]
    signature: Signature = Signature(SignatureState.NOT_SIGNED)

    @property
    def accepted(self) -> bool:
        """Whether there is no reason to refuse the bundle."""
        return not self.reasons


def verify(bundle: Path, *, allowed_signers: Path | None = None) -> Verification:
    """Verify a bundle and return the result.

    `allowed_signers`: a file with the keys that may have signed it; None: its signature is not checked. Raises
    UsageError only if this checkout has no frozen list, or if the signature cannot be checked.
    """
    frozen, digest = current_list()
    reasons: list[Reason] = []
    try:
        check_files_below(bundle)
    except (UnreadableFile, OSError) as problem:  # nothing of it is read: not even a digest of what a link leads to
        return Verification([not_accepted(f"{problem}: a bundle has only files and folders")], [])
    signature = check_signature(bundle, allowed_signers)
    if signature.state is SignatureState.INVALID or (allowed_signers and signature.state is not SignatureState.SIGNED):
        reasons.append(not_accepted(str(signature)))
    try:
        reasons += check_files(bundle)
        folders = part_folders(bundle)
        reasons += check_versions([Part(folder, frozen, judge=False) for folder in folders], frozen, digest)
        if any(reason.kind is RefusalKind.OTHER_VERSION for reason in reasons):
            return Verification(reasons, [])  # other versions' runs cannot be re-evaluated
        parts = [Part(folder, frozen) for folder in folders]
        for part in parts:
            reasons += check_part(part)
        replays = nonces_of_findings()
        for part in parts:
            reasons += check_histories(part.histories, part.engines(), replays)
        reasons += check_shared_nonces(((part.name, part.histories) for part in parts), replays.values())
        reasons += check_coverage(parts, frozen)
        results = bundle_results([part.folder for part in parts])
        reasons += check_views(bundle, results)
        reasons += check_outcome(results, parts)
        reasons += check_attestation(bundle, results, parts[0])
        # Alterations come first.
        ordered = sorted(set(reasons), key=lambda one: (list(RefusalKind).index(one.kind), one.sentence))
        return Verification(ordered, [*acceptance_summary(results, parts), str(signature)], signature)
    except Problem as problem:
        reasons.append(not_accepted(f"the bundle cannot be read as a run: {type(problem).__name__}: {problem}"))
        return Verification(reasons, [])


@functools.cache
def nonces_of_findings() -> dict[str, str]:
    """Return the nonce of each known finding's case, with which a run replays it."""
    with_case = [record for record in read_records().values() if record.no_case is None]
    return {one.id: one.case.nonce for one in read_findings(with_case) if one.case is not None}


def check_files(bundle: Path) -> Iterator[Reason]:
    """Yield a reason for each file that differs from its manifest. A merged bundle's shards are checked too."""
    folders = part_folders(bundle)
    for folder in folders if folders == [bundle] else [bundle, *folders]:
        where = "" if folder == bundle else f"{folder.relative_to(bundle).as_posix()}: "
        try:
            manifest = read_manifest(folder)
        except OSError:
            yield left_out(f"{where}{NAME} is missing: this is not a bundle of a run with --profile qualify")
        except msgspec.MsgspecError as problem:
            yield not_accepted(f"{where}{NAME} is not a valid manifest of this version: {problem}")
        else:
            for line in manifest_differences(folder, manifest):
                yield altered(f"{where}{line}")


def check_attestation(bundle: Path, results: Results, part: Part) -> Iterator[Reason]:
    """Yield a reason if the in-toto statement of a bundle is missing or says something else than the bundle."""
    if part.qualification is None:
        return
    try:
        problem = attestation_problem(bundle, results, part.qualification)
    except OSError:
        yield left_out(f"{ATTESTATION} is missing")
    except ValueError as unreadable:
        yield not_accepted(f"{ATTESTATION} is no envelope of a statement: {unreadable}")
    else:
        if problem:
            yield altered(f"{ATTESTATION}: {problem}")


def check_versions(parts: list[Part], frozen: FrozenList, digest: str) -> Iterator[Reason]:
    """Yield a reason for each run that was made with another version of Coldproof or of the frozen list."""
    sources = sources_digest()
    for part in parts:
        made = part.qualification
        if made is None:
            yield left_out(f"{part.name} has no qualification record: it was not made with --profile qualify")
            continue
        commit = f": check out {made.commit}" if made.commit else ""
        if made.requirements != frozen.version:
            yield other_version(
                f"{part.name} has requirements version {made.requirements}, this checkout has {frozen.version}{commit}"
            )
        elif made.requirements_sha256 != digest:
            yield other_version(f"{part.name} has a different frozen list for requirements version {frozen.version}")
        if made.sources_sha256 != sources:
            yield other_version(
                f"{part.name} was made with sources of digest {made.sources_sha256[:12]}, this checkout's digest is "
                f"{sources[:12]}{commit}"
            )


def check_part(part: Part) -> Iterator[Reason]:
    """Yield the reasons that follow from one run alone."""
    yield from (not_accepted(f"{part.name}: {line}") for line in part.problems)
    start, finish, made = part.started, part.last("run_finished"), part.qualification
    if start.get("profile") != QUALIFY:
        yield not_shown(f"{part.name} was made with --profile {start.get('profile')}, not --profile {QUALIFY}")
    if start.get("fault"):
        yield not_shown(f"{part.name} ran with an injected fault: {start['fault'].get('name')}")
    if start.get("repairs"):
        yield not_shown(f"{part.name} ran with repairs: {', '.join(one['name'] for one in start['repairs'])}")
    for verdict in start.get("allowed", ()):
        yield not_shown(f"{part.name} was allowed to pass with {verdict}: a qualification may not allow it")
    if not finish.get("complete"):
        yield left_out(f"{part.name} did not finish")
    if made is not None and made.known_issues_sha256 != digest_of(part.folder / KNOWN_ISSUES):
        there = (part.folder / KNOWN_ISSUES).is_file()
        yield (altered if there else left_out)(f"{part.name}: {KNOWN_ISSUES} is not the file that the run used")
    yield from check_events(part)
    yield from check_waivers(part)
    yield from check_verdicts(part)


def check_waivers(part: Part) -> Iterator[Reason]:
    """Yield a reason if the recorded states of the known issues do not follow from the cases and verdicts."""
    recorded = part.last("waivers")
    if not recorded:
        return
    results = bundle_results([part.folder])
    try:
        recomputed = part.waivers(recorded).report(results.cases, results.requirements)
    except UsageError as problem:
        yield altered(f"{part.name}: {problem}")
        return
    if msgspec.to_builtins(recomputed) != recorded["waivers"]:
        yield altered(f"{part.name}: the recorded states of the known issues do not follow from its cases")


def acceptance_summary(results: Results, parts: list[Part]) -> list[str]:
    """Return the summary of an accepted bundle, one fact in each line."""
    made = parts[0].qualification
    if made is None:
        return []
    tests = [one for part in parts for one in part.rejudged.values()]
    examples, requests = sum(one.examples for one in tests), sum(one.requests for one in tests)
    places = Counter(place for part in parts for place in part.announced())
    cells = dict.fromkeys(place.cell for place in places)
    lines = [
        results.headline,
        f"requirements {made.requirements}, sources {made.sources_sha256[:12]}, commit {made.commit or 'unknown'}",
        f"{len(places)} tests in {len(cells)} cells: {', '.join(cells)}",
        f"{examples} examples with {requests} requests were re-evaluated, all with the recorded results",
        *map(part_summary, parts),
        build_summary(made),
        *(
            f"known issue used: {one.finding or f'{one.requirement} in {one.cell}'}, {one.link}"
            for one in results.waivers
            if one.state == "used"
        ),
        *(f"remark: {name} in {one.id}" for one in results.requirements for name in one.remarks),
        *on_trust(results.cases),
    ]
    frozen, _ = read_frozen(made.requirements)
    possible = frozen.cells_of(made.engine, made.worker, attached=made.attached)
    skipped = [cell.name for cell in possible if cell.package and cell.name not in cells]
    lines += [f"cell not run: {name}, it needs a package that was not installed" for name in skipped]
    return lines


def part_summary(part: Part) -> str:
    """Return the budget and the seed of a run."""
    seconds = part.qualification.seconds if part.qualification is not None else None
    return f"{part.name}: {duration(seconds)} for drawing examples, seed {part.started['seed']}"


def build_summary(made: Qualification) -> str:
    """Return the engine and the packages that it was built from, in one line."""
    if not made.build:
        return f"engine {made.engine}, an attached server: its build is unknown"
    own = [p for p in made.build if p.record]
    return f"engine {made.engine} with {len(made.build)} packages, {len(own)} of them with digests of their files"
