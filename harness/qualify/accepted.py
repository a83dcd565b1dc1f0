"""What a release manager wants to know of a bundle that is accepted."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from harness.qualify.frozen import read_frozen
from harness.qualify.manifest import SIGNATURES
from harness.qualify.part import Part
from harness.qualify.record import Qualification
from reports.schema import Results
from reports.text import duration


def accepted(bundle: Path, results: Results, parts: list[Part]) -> list[str]:
    """What a release manager wants to know of an accepted bundle."""
    made = parts[0].qualification
    if made is None:
        return []
    seen = [one for part in parts for one in part.seen.values()]
    examples, requests = sum(one.examples for one in seen), sum(one.requests for one in seen)
    places = Counter(place for part in parts for place in part.announced())
    cells = dict.fromkeys(place.cell for place in places)
    lines = [
        results.headline,
        f"requirements {made.requirements}, sources {made.sources_sha256[:12]}, commit {made.commit or 'not told'}",
        f"{len(places)} tests in {len(cells)} cells: {', '.join(cells)}",
        f"{examples} examples with {requests} requests were judged again, and all came out as recorded",
        *map(in_words, parts),
        built(made),
        *(f"known issue used: {w.requirement} in {w.cell}, {w.link}" for w in results.waivers if w.state == "used"),
    ]
    lines += [f"not run: {name}, which needs a package" for name in lacking_cells(made, list(cells))]
    if not any((bundle / name).is_file() for name in SIGNATURES):
        lines.append(f"not signed: nothing says who made it (there is no {SIGNATURES[0]})")
    return lines


def in_words(part: Part) -> str:
    """What a run was given."""
    seconds = part.qualification.seconds if part.qualification is not None else None
    return f"{part.name}: {duration(seconds)} for drawing examples, seed {part.started['seed']}"


def built(made: Qualification) -> str:
    """The engine's build in a line."""
    if not made.build:
        return f"engine {made.engine}, a server of its owner's: its build is not known"
    own = [p for p in made.build if p.record]
    return f"engine {made.engine}, built of {len(made.build)} packages, {len(own)} with digests of their files"


def lacking_cells(made: Qualification, ran: list[str]) -> list[str]:
    """Cells of the list that need what was not installed."""
    frozen, _ = read_frozen(made.requirements)
    cells = frozen.cells_of(made.engine, made.worker, attached=made.attached)
    return [cell.name for cell in cells if cell.package and cell.name not in ran]
