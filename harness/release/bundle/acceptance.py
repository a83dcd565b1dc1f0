"""Summarises an accepted bundle for a release manager."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from coldproof.harness.release.bundle.run_folder import Part
from coldproof.harness.release.requirements.frozen import read_frozen
from coldproof.harness.release.run.manifest import SIGNATURES
from coldproof.harness.release.run.record import Qualification
from coldproof.reports.format.text import duration
from coldproof.reports.schema.results import Results


def acceptance_summary(bundle: Path, results: Results, parts: list[Part]) -> list[str]:
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
        *(f"known issue used: {w.requirement} in {w.cell}, {w.link}" for w in results.waivers if w.state == "used"),
    ]
    lines += [
        f"cell not run: {name}, it needs a package that was not installed" for name in skipped_cells(made, list(cells))
    ]
    if not any((bundle / name).is_file() for name in SIGNATURES):
        lines.append(f"not signed: the bundle does not prove who made it (no {SIGNATURES[0]})")
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


def skipped_cells(made: Qualification, ran: list[str]) -> list[str]:
    """Return the cells of the list that were skipped because a package is not installed."""
    frozen, _ = read_frozen(made.requirements)
    cells = frozen.cells_of(made.engine, made.worker, attached=made.attached)
    return [cell.name for cell in cells if cell.package and cell.name not in ran]
