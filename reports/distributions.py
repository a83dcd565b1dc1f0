"""How what a requirement's examples did was spread: hit lengths, evictions, preemptions, aborts, routes of reloads.

Tallied example by example, for their lines may come to gigabytes. What never happened has no distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from reports.schema import Bin, Distribution

EVICTED = "prompt tokens that had been computed and were gone"
PREEMPTIONS = "preemptions"
WHILE_RUNNING = "while requests ran"

Tally = Counter[tuple[str, int | str]]


class Asked(msgspec.Struct, frozen=True):
    """One request of an example."""

    cached_tokens: int | None = None
    aborted: str | None = None


class Change(msgspec.Struct, frozen=True):
    """What is changed while requests run, if it has a route: then it is an adapter."""

    route: str = ""


class Meanwhile(msgspec.Struct, frozen=True):
    """A change in the midst of a burst."""

    change: Change = Change()


class Step(msgspec.Struct, frozen=True):
    """One step of a workload, as far as it may change an adapter."""

    route: str = ""
    meanwhile: Meanwhile | None = None


class Workload(msgspec.Struct, frozen=True):
    """What was to be done."""

    steps: tuple[Step, ...] = ()


class History(msgspec.Struct, frozen=True):
    """An example's requests and its workload."""

    outcomes: tuple[Asked, ...] = ()
    workload: Workload = Workload()


@dataclass(frozen=True, slots=True)
class Kind:
    """One distribution: what it counts, and how an example's values follow from what it did.

    `first`: numbers are binned by doubling from there on, words by themselves. `of_noughts`: worth showing even where
    nothing else was seen.
    """

    name: str
    unit: str
    values: Callable[[History, dict[str, float]], Iterator[int | str]]
    first: int = 1
    of_noughts: bool = False


def hit_lengths(history: History, _: dict[str, float]) -> Iterator[int]:
    """Cached tokens of every request that told them."""
    return (asked.cached_tokens for asked in history.outcomes if asked.cached_tokens is not None)


def evictions(_: History, evidence: dict[str, float]) -> Iterator[int]:
    """Tokens that one example found evicted."""
    yield int(evidence.get(EVICTED, 0))


def preemptions(_: History, evidence: dict[str, float]) -> Iterator[int]:
    """Preemptions in one example."""
    yield int(evidence.get(PREEMPTIONS, 0))


def abort_stages(history: History, _: dict[str, float]) -> Iterator[str]:
    """How far the engine had come with each request whose client hung up."""
    return (asked.aborted for asked in history.outcomes if asked.aborted is not None)


def routes(history: History, _: dict[str, float]) -> Iterator[str]:
    """How each adapter change was asked for, and whether requests ran meanwhile."""
    for step in history.workload.steps:
        if step.route:
            yield step.route
        if step.meanwhile is not None and step.meanwhile.change.route:
            yield f"{step.meanwhile.change.route}, {WHILE_RUNNING}"


KINDS = (
    Kind("Cached tokens of a request", "requests", hit_lengths, first=16, of_noughts=True),
    Kind("Prompt tokens that an example found evicted", "examples", evictions, first=16),
    Kind("Preemptions in an example", "examples", preemptions),
    Kind("Where a request was when its client hung up", "requests", abort_stages),
    Kind("Ways in which adapters were loaded and changed", "changes", routes),
)


def tally(history: History, evidence: dict[str, float]) -> Tally:
    """One example's values by kind, numbers by the place of their bin."""
    return Counter(
        (kind.name, value if isinstance(value, str) else place(value, kind.first))
        for kind in KINDS
        for value in kind.values(history, evidence)
    )


def distributions(tallies: Iterable[Tally]) -> list[Distribution]:
    """All examples together, in the order of `KINDS`; where nothing but noughts was seen there is none."""
    total: Tally = Counter()
    for one in tallies:
        total.update(one)
    found = []
    for kind in KINDS:
        seen = {value: count for (name, value), count in total.items() if name == kind.name}
        if any(seen) or (seen and kind.of_noughts):
            found.append(Distribution(name=kind.name, unit=kind.unit, bins=bins(seen, kind.first)))
    return found


def bins(seen: dict[int | str, int], first: int) -> list[Bin]:
    """Numbers from nought to the largest seen, gaps too; words as they were counted, the most frequent first."""
    numbers = [value for value in seen if isinstance(value, int)]
    if numbers:
        return [Bin(label=span(n, first), count=seen.get(n, 0)) for n in range(max(numbers) + 1)]
    words = sorted(seen.items(), key=lambda item: (-item[1], str(item[0])))
    return [Bin(label=str(word), count=count) for word, count in words]


def place(value: int, first: int) -> int:
    """Which bin a number falls into: nought alone, what is below `first`, then doubling."""
    if value <= 0:
        return 0
    below = 1 if first > 1 else 0
    return below + (value // first).bit_length() if value >= first else 1


def span(place: int, first: int) -> str:
    """The numbers of a bin, in words."""
    if place == 0:
        return "0"
    below = 1 if first > 1 else 0
    if place <= below:
        return f"1\N{EN DASH}{first - 1}"
    low = first << (place - below - 1)
    high = 2 * low - 1
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"
