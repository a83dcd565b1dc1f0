"""Whether a qualification, over all its shards, holds every place of the frozen list exactly once."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Iterator

from harness.cell import Cell
from harness.qualify.frozen import FrozenList, Place
from harness.qualify.part import Part
from harness.qualify.reason import Reason, altered, left_out, not_shown
from reports.schema import RequirementResult, Results, Verdict

# Of each requirement, over its tests and cells. So many examples --profile ci draws at most for one test; those of a
# working set are few, and have dozens of requests each.
FEWEST_EXAMPLES, FEWEST_REQUESTS = 30, 100
SHOWN = 3
SEARCH_ENDED = (Verdict.KNOWN_ISSUE, Verdict.VIOLATED, Verdict.UNSUPPORTED)  # a counterexample ends the drawing


def check_coverage(parts: list[Part], frozen: FrozenList) -> Iterator[Reason]:
    """Shards, places and what was said of them."""
    yield from check_shards([part.shard for part in parts])
    announced: Counter[Place] = Counter()
    concluded: Counter[Place] = Counter()
    for part in parts:
        announced += part.announced()
        concluded += Counter(place for place, _ in part.verdicts())
    wanted = frozen.places(cells_of(parts, frozen, announced))
    yield from gaps("are not in it", [place for place in wanted if place not in announced], left_out)
    yield from gaps("are in no list of requirements", sorted(announced.keys() - set(wanted)), altered)
    yield from gaps("were run twice", [p for p, n in announced.items() if n > 1], altered)
    yield from gaps("have no verdict", [p for p in announced if p not in concluded], left_out)
    yield from gaps("have several verdicts", [p for p, n in concluded.items() if n > 1], altered)
    yield from gaps("have a verdict and were never announced", sorted(concluded.keys() - announced.keys()), altered)
    for part in parts:
        yield from check_statements(part)


def cells_of(parts: list[Part], frozen: FrozenList, announced: Counter[Place]) -> list[Cell]:
    """The cells that have to be there; one that needs a package of its own may lack where that is not installed."""
    made = next((part.qualification for part in parts if part.qualification is not None), None)
    if made is None:
        return []
    ran = {place.cell for place in announced}
    return [
        cell
        for cell in frozen.cells_of(made.engine, made.worker, attached=made.attached)
        if cell.package is None or cell.name in ran
    ]


def check_shards(shards: list[str]) -> Iterator[Reason]:
    """Each of them once."""
    if shards == [""]:
        return
    counted = Counter(shards)
    of = {shard.partition("/")[2] for shard in shards}
    if "" in counted or len(of) != 1:
        yield altered(f"these are no shards of one run: {', '.join(shard or 'a whole run' for shard in shards)}")
        return
    whole = [f"{number}/{of_all}" for of_all in of for number in range(1, int(of_all) + 1)]
    missing = [shard for shard in whole if shard not in counted]
    if missing:
        named = ", ".join(missing[:SHOWN]) + (", ..." if len(missing) > SHOWN else "")
        yield left_out(
            f"of {len(whole)} shards {len(missing)} are missing ({named}): python -m reports merge joins them"
        )
    yield from (altered(f"shard {shard} is in it {n} times") for shard, n in counted.items() if n > 1)


def gaps(what: str, places: list[Place], make: Callable[[str], Reason]) -> Iterator[Reason]:
    """One reason for all places of a kind."""
    if places:
        named = ", ".join(str(place) for place in places[:SHOWN]) + (", ..." if len(places) > SHOWN else "")
        yield make(f"{len(places)} tests {what}: {named}")


def check_statements(part: Part) -> Iterator[Reason]:
    """What a requirement says is what was frozen."""
    for event in part.all("requirement"):
        test = part.frozen.test(Place(event["id"], event["test"], event["cell"]))
        if test is None:
            continue
        wanted = test.declared
        said = (event["title"], inspect.cleandoc(event["statement"]), tuple(event["shows"]))
        if said != (wanted.title, test.statement, (*wanted.shows, *wanted.shows_where.values())):
            yield altered(f"{event['id']} ({event['test']}) is announced with another title, statement or evidence")


def check_examples(results: Results) -> Iterator[Reason]:
    """Each requirement was looked at often enough."""
    for requirement in results.requirements:
        requests = sum(cell.requests for cell in requirement.cells)
        few = requirement.examples < FEWEST_EXAMPLES and requests < FEWEST_REQUESTS
        if few and requirement.verdict not in SEARCH_ENDED and not drawn_out(requirement):
            yield not_shown(
                f"{requirement.id} was looked at in {requirement.examples} examples with {requests} requests, and a "
                f"qualification wants {FEWEST_EXAMPLES} examples or {FEWEST_REQUESTS} requests: raise --budget"
            )


def drawn_out(requirement: RequirementResult) -> bool:
    """Whether no cell used up its time: there are no other examples to draw, and a larger budget finds none."""
    cells = [cell for cell in requirement.cells if cell.verdict is not Verdict.UNSUPPORTED]
    return all(cell.examples and cell.drawn < cell.share for cell in cells)
