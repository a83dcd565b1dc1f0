"""Whether what a bundle shows is what its events give, and whether that is enough to qualify the engine."""

from __future__ import annotations

import filecmp
import tempfile
from collections.abc import Iterator
from pathlib import Path

import msgspec

from harness.qualify.coverage import check_examples
from harness.qualify.part import Part
from harness.qualify.reason import Reason, altered, left_out, not_shown
from reports.schema import Results, Verdict, read_results
from reports.text import one_line
from reports.write import write_all

PAGES = ("index.html", "summary.md", "junit.xml", "badge.svg")
SHOWN = 5  # of one kind of places in a sentence
# Of the record: what all shards of one qualification have in common.
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
    """results.json and all pages are what the events give, drawn again here."""
    try:
        there = read_results(bundle / "results.json")
    except OSError:
        yield left_out("results.json is not there")
    except msgspec.MsgspecError as problem:
        yield altered(f"results.json cannot be read: {problem}")
    else:
        yield from (altered(f"results.json: {line}") for line in unlike(there, results))
    with tempfile.TemporaryDirectory(prefix="coldproof-verify-") as scratch:
        write_all(results, Path(scratch))
        for name in PAGES:
            if not (bundle / name).is_file():
                yield left_out(f"{name} is not there")
            elif not filecmp.cmp(Path(scratch) / name, bundle / name, shallow=False):
                yield altered(f"{name} is not what its events give")


def unlike(there: Results, again: Results) -> Iterator[str]:
    """The fields of results that do not follow from the events; of requirements, which of them."""
    for field in again.__struct_fields__:
        told, follows = getattr(there, field), getattr(again, field)
        if told == follows:
            continue
        if field != "requirements":
            plain = isinstance(told, str | int | float | None)
            says = f"{one_line(str(told), 120)}, its events give {one_line(str(follows), 120)}"
            yield f"{field} is {says if plain else 'not what its events give'}"
            continue
        ours = {one.id: one for one in follows}
        for one in told:
            mine = ours.pop(one.id, None)
            if mine is None:
                yield f"{one.id} is in no event"
            elif one.verdict is not mine.verdict:
                yield f"{one.id} is {one.verdict}, its events give {mine.verdict}"
            elif one != mine:
                yield f"{one.id} is not what its events give"
        yield from (f"{name} is missing" for name in ours)


def check_outcome(results: Results, parts: list[Part]) -> Iterator[Reason]:
    """The engine conforms, known issues aside, and was asked often enough."""
    for requirement in results.requirements:
        if requirement.verdict not in (Verdict.CONFORMS, Verdict.KNOWN_ISSUE, Verdict.UNSUPPORTED):
            cells = [cell.cell for cell in requirement.cells if cell.verdict is requirement.verdict]
            yield not_shown(
                f"{requirement.id} is {requirement.verdict} in {some(cells)}: {one_line(requirement.reason, 240)}"
            )
    for row in results.selftest:
        if not row.caught:
            yield not_shown(f"the detector was wrong about '{row.planted}' in its self-test")
    if results.problem:
        yield not_shown(f"the run stopped: {results.problem}")
    if not any(requirement.verdict is Verdict.CONFORMS for requirement in results.requirements):
        yield not_shown("no requirement conforms")
    yield from check_examples(results)
    for field in ALIKE:
        if len({getattr(part.qualification, field) for part in parts if part.qualification is not None}) > 1:
            yield not_shown(
                f"the shards are not of one qualification: {field.replace('_', ' ')} is not the same in all"
            )
    for field in ("name", "version", "adapter", "worker"):
        told = {str(e["engine"][field]) for part in parts for e in part.all("engine")}
        if len(told) > 1:
            yield not_shown(f"several engines were asked: {field} {' and '.join(sorted(told))}")


def some(names: list[str]) -> str:
    """The first few, and how many more."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more
