"""Checks that a bundle's results and pages follow from its events, and that the results qualify the engine."""

from __future__ import annotations

import filecmp
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from coldproof.harness.release.bundle.refusal import Reason, altered, left_out, not_shown
from coldproof.harness.release.bundle.run_folder import Part
from coldproof.harness.schema.results import Results, read_results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.exports.write import write_all
from coldproof.reports.format.text import one_line

PAGES = ("index.html", "summary.md", "junit.xml", "ctrf.json", "badge.svg")
SHOWN = 5  # cells named in a message
# The fields of the record that must be equal in all shards of one qualification.
ALIKE = (
    "requirements_sha256",
    "sources_sha256",
    "engine",
    "worker",
    "attached",
    "oracle",
    "arguments",
    "model",
    "known_issues_sha256",
    "build",
)


def check_views(bundle: Path, results: Results) -> Iterator[Reason]:
    """Yield a reason for each file that differs from the one that is generated here from the events."""
    try:
        there = read_results(bundle / "results.json")
    except OSError:
        yield left_out("results.json is missing")
    except msgspec.MsgspecError as problem:
        yield altered(f"results.json cannot be read: {problem}")
    else:
        yield from (altered(f"results.json: {line}") for line in field_differences(there, results))
    with tempfile.TemporaryDirectory(prefix="coldproof-verify-") as scratch:
        write_all(results, Path(scratch))
        for name in PAGES:
            if not (bundle / name).is_file():
                yield left_out(f"{name} is missing")
            elif not filecmp.cmp(Path(scratch) / name, bundle / name, shallow=False):
                yield altered(f"{name} differs from the page that the events give")


def field_differences(there: Results, recomputed: Results) -> Iterator[str]:
    """Yield a line for each field, and for each requirement, that does not follow from the events."""
    for field in recomputed.__struct_fields__:
        stored, follows = getattr(there, field), getattr(recomputed, field)
        if stored == follows:
            continue
        if field != "requirements":
            plain = isinstance(stored, str | int | float | None)

            values = f"{one_line(str(stored), 120)}, the events give {one_line(str(follows), 120)}"
            yield f"{field} is {values if plain else 'not what the events give'}"
            continue
        ours = {one.id: one for one in follows}
        for one in stored:
            mine = ours.pop(one.id, None)
            if mine is None:
                yield f"{one.id} is not in the events"
            elif one.verdict is not mine.verdict:
                yield f"{one.id} is {one.verdict}, the events give {mine.verdict}"
            elif one != mine:
                yield f"{one.id} is not what the events give"
        yield from (f"{name} is missing" for name in ours)


def check_outcome(results: Results, parts: list[Part]) -> Iterator[Reason]:
    """Yield a reason for each thing that keeps the results from qualifying the engine."""
    for requirement in results.requirements:
        if requirement.verdict not in (Verdict.CONFORMS, Verdict.KNOWN_ISSUE, Verdict.UNSUPPORTED):
            cells = first_names([cell.cell for cell in requirement.cells if cell.verdict is requirement.verdict])
            where = f" in {cells}" if cells else ""  # too few examples are so over all cells
            yield not_shown(f"{requirement.id} is {requirement.verdict}{where}: {one_line(requirement.reason, 240)}")
    for row in results.selftest:
        if not row.caught:
            yield not_shown(f"the detector failed its self-test for '{row.planted}'")
    if results.problem:
        yield not_shown(f"the run stopped: {results.problem}")
    if not any(requirement.verdict is Verdict.CONFORMS for requirement in results.requirements):
        yield not_shown("no requirement conforms")
    for field in ALIKE:
        if len({getattr(part.qualification, field) for part in parts if part.qualification is not None}) > 1:
            yield not_shown(f"the shards do not belong to one qualification: {field.replace('_', ' ')} differs")
    for field in ("name", "version", "adapter", "worker"):
        values = {str(e["engine"][field]) for part in parts for e in part.all("engine")}
        if len(values) > 1:
            yield not_shown(f"the run used several engines: {field} {' and '.join(sorted(values))}")


def first_names(names: list[str]) -> str:
    """Return the first names, and how many more there are."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
