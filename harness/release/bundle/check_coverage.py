"""Checks that a qualification covers every place of the frozen list exactly once, over all its shards."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator

import msgspec

from coldproof.adapters.spec.cell import Cell
from coldproof.harness.judgement.requirement import statement_parts
from coldproof.harness.options import UsageError
from coldproof.harness.release.bundle.refusal import Reason, altered, left_out, not_accepted
from coldproof.harness.release.bundle.run_folder import Part
from coldproof.harness.release.requirements.frozen import FrozenList, Place
from coldproof.harness.selection.shards import read_shard
from coldproof.reports.format.text import one_line

SHOWN = 3  # missing shards or places named in a message
MOST_NAMED = 10  # shards named in a message that are not those of one run


def check_coverage(parts: list[Part], frozen: FrozenList) -> Iterator[Reason]:
    """Yield a reason for each shard or place that is missing, duplicated or unknown."""
    yield from check_shards([part.shard for part in parts])
    announced: Counter[Place] = Counter()
    concluded: Counter[Place] = Counter()
    for part in parts:
        announced += part.announced()
        concluded += Counter(place for place, _ in part.verdicts())
    wanted = frozen.places(cells_of(parts, frozen, announced))
    yield from place_reasons("are missing", [place for place in wanted if place not in announced], left_out)
    yield from place_reasons("are not in the frozen list", sorted(announced.keys() - set(wanted)), altered)
    yield from place_reasons("were run twice", [p for p, n in announced.items() if n > 1], not_accepted)
    yield from place_reasons("have no verdict", [p for p in announced if p not in concluded], left_out)
    yield from place_reasons("have several verdicts", [p for p, n in concluded.items() if n > 1], altered)
    yield from place_reasons(
        "have a verdict but were never announced", sorted(concluded.keys() - announced.keys()), altered
    )
    for part in parts:
        yield from check_statements(part)


def cells_of(parts: list[Part], frozen: FrozenList, announced: Counter[Place]) -> list[Cell]:
    """Return the cells that must have run. A cell that needs an extra package may be missing.

    So may one that runs on request only: a qualification takes no such request.
    """
    made = next((part.qualification for part in parts if part.qualification is not None), None)
    if made is None:
        return []
    ran = {place.cell for place in announced}
    return [
        cell
        for cell in frozen.cells_of(made.engine, made.worker, attached=made.attached)
        if cell.name in ran or (cell.package is None and not cell.on_request)
    ]


def check_shards(shards: list[str]) -> Iterator[Reason]:
    """Yield a reason for each shard that is missing or duplicated."""
    if shards == [""]:
        return
    counted = Counter(shards)
    of = {shard.partition("/")[2] for shard in shards}
    try:
        read = [read_shard(shard) for shard in shards]
    except UsageError:
        read = []
    if len(of) != 1 or not read:
        named = ", ".join(one_line(shard, 40) or "a whole run" for shard in shards[:MOST_NAMED])
        yield not_accepted(f"these are not the shards of one run: {named}")
        return
    there, total = {shard.number for shard in read}, read[0].of
    if missing := total - len(there):
        first = [n for n in range(1, len(there) + SHOWN + 1) if n not in there and n <= total][:SHOWN]
        named = ", ".join(f"{number}/{total}" for number in first) + (", ..." if missing > SHOWN else "")
        yield left_out(f"{missing} of {total} shards are missing ({named}): merge all with `coldproof merge`")
    yield from (not_accepted(f"shard {shard} is given {n} times") for shard, n in counted.items() if n > 1)


def place_reasons(what: str, places: list[Place], make: Callable[[str], Reason]) -> Iterator[Reason]:
    """Yield one reason that names the first of these places; none if there are no places."""
    if places:
        named = ", ".join(str(place) for place in places[:SHOWN]) + (", ..." if len(places) > SHOWN else "")
        yield make(f"{len(places)} tests {what}: {named}")


def check_statements(part: Part) -> Iterator[Reason]:
    """Yield a reason for each requirement whose announced statement is not the frozen one."""
    for event in part.all("requirement"):
        test = part.frozen.test(Place(event["id"], event["test"], event["cell"]))
        if test is None:
            continue
        wanted = test.declared
        parts = msgspec.to_builtins(statement_parts(test.statement))
        said = (event["title"], inspect.cleandoc(event["statement"]), event["parts"], sorted(event["shows"]))
        # Sorted, because the list's file does not keep the order of a mapping.
        if said != (wanted.title, test.statement, parts, sorted((*wanted.shows, *wanted.shows_where.values()))):
            yield altered(f"{event['id']} ({event['test']}) is announced with another title, statement or evidence")
