"""Distributions over a requirement's examples: hit lengths, evictions, preemptions, aborts, routes of reloads.

Examples are counted one by one, because their events may be gigabytes. What never occurred has no distribution.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import msgspec

from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import Bin, Distribution

WHILE_RUNNING = "while requests ran"

Tally = Counter[tuple[str, int | str]]


class ExampleRequest(msgspec.Struct, frozen=True):
    """One request of an example."""

    cached_tokens: int | None = None
    aborted: str | None = None


class Change(msgspec.Struct, frozen=True):
    """A change while requests run. It is an adapter change if it has a route."""

    route: str = ""


class ConcurrentChange(msgspec.Struct, frozen=True):
    """A change during a burst."""

    change: Change = Change()


class Step(msgspec.Struct, frozen=True):
    """One step of a workload, with the fields of adapter changes."""

    route: str = ""
    meanwhile: ConcurrentChange | None = None


class Workload(msgspec.Struct, frozen=True):
    """The steps of an example."""

    steps: tuple[Step, ...] = ()


class History(msgspec.Struct, frozen=True):
    """An example's requests and its workload."""

    outcomes: tuple[ExampleRequest, ...] = ()
    workload: Workload = Workload()


@dataclass(frozen=True, slots=True)
class DistributionKind:
    """One distribution: what it counts, and how to compute an example's values.

    `first`: the first bin ends before this number; further bins double. Texts have one bin each. `show_zeros`: show the
    distribution even if all values are 0.
    """

    name: str
    unit: str
    values: Callable[[History, dict[str, float]], Iterator[int | str]]
    first: int = 1
    show_zeros: bool = False


def hit_lengths(history: History, _: dict[str, float]) -> Iterator[int]:
    """Return the cached tokens of every request for which the engine reported them."""
    return (request.cached_tokens for request in history.outcomes if request.cached_tokens is not None)


def counter(name: str) -> Callable[[History, dict[str, float]], Iterator[int]]:
    """Return a function for the value of one evidence counter in an example."""
    return lambda _, evidence: iter([int(evidence.get(name, 0))])


def abort_stages(history: History, _: dict[str, float]) -> Iterator[str]:
    """Return the stage of each request whose client disconnected."""
    return (request.aborted for request in history.outcomes if request.aborted is not None)


def routes(history: History, _: dict[str, float]) -> Iterator[str]:
    """Yield the route of each adapter change, and whether requests ran during it."""
    for step in history.workload.steps:
        if step.route:
            yield step.route
        if step.meanwhile is not None and step.meanwhile.change.route:
            yield f"{step.meanwhile.change.route}, {WHILE_RUNNING}"


KINDS = (
    DistributionKind("Cached tokens of a request", "requests", hit_lengths, first=16, show_zeros=True),
    DistributionKind("Evicted prompt tokens in an example", "examples", counter(ReportedEvidence.EVICTED), first=16),
    DistributionKind("Preemptions in an example", "examples", counter(ReportedEvidence.PREEMPTIONS)),
    DistributionKind("Stage of a request when its client disconnected", "requests", abort_stages),
    DistributionKind("Routes of adapter changes", "changes", routes),
)


def tally(history: History, evidence: dict[str, float]) -> Tally:
    """Count one example's values by kind. Numbers are counted by the index of their bin."""
    return Counter(
        (kind.name, value if isinstance(value, str) else bin_index(value, kind.first))
        for kind in KINDS
        for value in kind.values(history, evidence)
    )


def distributions(tallies: Iterable[Tally]) -> list[Distribution]:
    """Return the distributions over all examples, in the order of `KINDS`, without those that are empty or all 0."""
    total: Tally = Counter()
    for one in tallies:
        total.update(one)
    found = []
    for kind in KINDS:
        seen = {value: count for (name, value), count in total.items() if name == kind.name}
        if any(seen) or (seen and kind.show_zeros):
            found.append(Distribution(name=kind.name, unit=kind.unit, bins=bins(seen, kind.first)))
    return found


def bins(seen: dict[int | str, int], first: int) -> list[Bin]:
    """Return the bins. Numbers: from 0 to the largest value, with empty bins. Texts: the most frequent first."""
    numbers = [value for value in seen if isinstance(value, int)]
    if numbers:
        return [Bin(label=bin_label(n, first), count=seen.get(n, 0)) for n in range(max(numbers) + 1)]
    words = sorted(seen.items(), key=lambda item: (-item[1], str(item[0])))
    return [Bin(label=str(word), count=count) for word, count in words]


def bin_index(value: int, first: int) -> int:
    """Return the bin of a number: 0 alone, then all below `first`, then doubling ranges."""
    if value <= 0:
        return 0
    below = 1 if first > 1 else 0
    return below + (value // first).bit_length() if value >= first else 1


def bin_label(place: int, first: int) -> str:
    """Return the range of a bin as text."""
    if place == 0:
        return "0"
    below = 1 if first > 1 else 0
    if place <= below:
        return f"1\N{EN DASH}{first - 1}"
    low = first << (place - below - 1)
    high = 2 * low - 1
    return str(low) if low == high else f"{low}\N{EN DASH}{high}"
