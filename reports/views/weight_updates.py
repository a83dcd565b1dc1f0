"""Updates of the weights as a table: what the caller did x how the new weights came, in each layer.

Fail closed: a pair that the engine has and no request exercised is NOT EXERCISED, also if no other pair of its route
was exercised.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from coldproof.harness.schema.results import EngineResult, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.schema.weight_updates import (
    INVALIDATION_NEEDS,
    PROMISED,
    ROUTE_NEEDS,
    Invalidation,
    UpdateCount,
)
from coldproof.reports.format.text import many, number
from coldproof.reports.views.requirements import LAYER_ORDER

MIN_REQUESTS = 5  # fewer are no sample of a pair; a requirement needs as many examples in the server layer
NO_RESULT = (Verdict.INCONCLUSIVE, Verdict.ERROR)
FOUND = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE, *NO_RESULT)  # the verdicts that a wrong answer can lead to
KEEP = "clears the cache; requests in flight go on"
ABORT = "clears the cache; requests in flight end"
SLEEP = "discards the KV; requests in flight end"
WAIT = "clears the cache; requests in flight finish first"
ABOUT = {
    Invalidation.UPDATE: "the engine promises that the update itself is enough",
    Invalidation.RESET: "the reset reported success",
    Invalidation.RESET_BEFORE: "the reset reported success, and nothing was computed in between",
    Invalidation.KEEP_AROUND: KEEP,
    Invalidation.KEEP_AFTER: KEEP,
    Invalidation.ABORT_AROUND: ABORT,
    Invalidation.ABORT_AFTER: ABORT,
    Invalidation.WAIT_AROUND: WAIT,
    Invalidation.WAIT_AFTER: WAIT,
    Invalidation.SLEEP_BEFORE: SLEEP,
    Invalidation.SLEEP_AFTER: SLEEP,
    Invalidation.DEEP_SLEEP: "discards the KV and the weights; requests in flight end",
    Invalidation.SALT: "in every request after the update",
    Invalidation.NOTHING: "the engine promises nothing here: answers are not compared",
}


@dataclass(frozen=True, slots=True)
class PairField:
    """One pair in one layer. `verdict`: None where nothing is promised. `requirement`: the id that a link leads to."""

    verdict: Verdict | None
    words: str
    wrong: bool = False
    requirement: str = ""


@dataclass(frozen=True, slots=True)
class PairRow:
    """One row: what the caller did, and a field for each route."""

    name: str
    about: str
    fields: list[PairField]


@dataclass(frozen=True, slots=True)
class PairGroup:
    """The rows of one layer. `layer`: "" in a run of one layer."""

    layer: str
    rows: list[PairRow]


@dataclass(frozen=True, slots=True)
class UpdateMatrix:
    """The table. `routes`: the columns. `promises`: what the engine promises, as text; of several if layers differ."""

    routes: list[str]
    groups: list[PairGroup]
    promises: list[str]


def update_matrix(results: Results) -> UpdateMatrix | None:
    """Return the table; None for a run in which no request followed an update of the weights."""
    counts = results.weight_updates
    if not counts:
        return None
    layers = layers_of(results)
    engines = [engine for layer in layers if (engine := engine_of(results, layer)) is not None]
    there = {route for route, need in ROUTE_NEEDS.items() if any(has(engine, need) for engine in engines)}
    routes = sorted(there | {one.route for one in counts}, key=[*ROUTE_NEEDS, *(one.route for one in counts)].index)
    return UpdateMatrix(
        routes=routes,
        groups=[group(results, layer, routes) for layer in layers],
        promises=list(dict.fromkeys(engine.weight_promise for engine in engines if engine.weight_promise)),
    )


def layers_of(results: Results) -> list[str]:
    """Return the layers in which the requirements of these counts ran, with or without a request that counts."""
    ids = {one.requirement for one in results.weight_updates}
    cells = [cell for requirement in results.requirements if requirement.id in ids for cell in requirement.cells]
    ran = {cell.layer for cell in cells if cell.verdict is not Verdict.UNSUPPORTED}
    layers = {one.layer for one in results.weight_updates} | ran
    return sorted(layers, key=[*LAYER_ORDER, *sorted(layers)].index)


def has(engine: EngineResult, capability: str) -> bool:
    """Return whether an engine is known to have a capability."""
    return engine.capabilities.get(capability, {}).get("present") is True


def engine_of(results: Results, layer: str) -> EngineResult | None:
    """Return the engine of a layer; None if it did not start."""
    return next((one.engine for one in results.layers if one.layer == layer), results.engine)


def group(results: Results, layer: str, routes: Sequence[str]) -> PairGroup:
    """Return the rows of one layer: what was exercised, and what the promise would have allowed."""
    counts = [one for one in results.weight_updates if one.layer == layer] or results.weight_updates
    shown = {one.invalidation for one in counts} | {by for one in counts for by in PROMISED.get(one.policy, ())}
    rows = [
        PairRow(name=by.value, about=ABOUT.get(by, ""), fields=[field(results, layer, by, route) for route in routes])
        for by in Invalidation
        if by in shown
    ]
    return PairGroup(layer=layer if len(results.layers) > 1 else "", rows=rows)


def field(results: Results, layer: str, by: Invalidation, route: str) -> PairField:
    """Return the field of one pair in one layer."""
    pair = (layer, by, route)
    counts = [one for one in results.weight_updates if (one.layer, one.invalidation, one.route) == pair]
    requests, wrong = sum(one.requests for one in counts), sum(one.wrong for one in counts)
    if by is Invalidation.NOTHING:
        return unpromised(counts, requests)
    if not requests:
        absent = absent_capability(engine_of(results, layer), by, route)
        return PairField(Verdict.UNSUPPORTED, absent) if absent else PairField(Verdict.NOT_EXERCISED, "no request")
    most = max(counts, key=lambda one: (one.wrong, one.requests))
    if wrong:
        found = [verdict for verdict in cell_verdicts(results, counts, wrong=True) if verdict in FOUND]
        verdict = max(found, key=list(Verdict).index, default=Verdict.INCONCLUSIVE)
        return PairField(verdict, f"{number(wrong)} of {number(requests)} wrong", True, most.requirement)
    verdict, words = Verdict.CONFORMS, f"{many(requests, 'request')}, none wrong"
    unsure = [verdict for verdict in cell_verdicts(results, counts, wrong=False) if verdict in NO_RESULT]
    if unsure:
        verdict = max(unsure, key=list(Verdict).index)
    elif requests < MIN_REQUESTS:
        verdict, words = Verdict.NOT_EXERCISED, f"only {many(requests, 'request')}"
    return PairField(verdict, words, False, most.requirement)


def unpromised(counts: Sequence[UpdateCount], requests: int) -> PairField:
    """Return the field of updates that nothing followed: how many requests hit old KV."""
    if not requests:
        return PairField(None, "no request")
    if any(one.hits is None for one in counts):
        return PairField(None, f"{many(requests, 'request')}; hits are not reported")
    return PairField(None, f"{number(sum(one.hits or 0 for one in counts))} of {number(requests)} hit old KV")


def cell_verdicts(results: Results, counts: Sequence[UpdateCount], *, wrong: bool) -> Iterator[Verdict]:
    """Yield the verdicts of the requirements in the cells where a pair was exercised.

    `wrong`: only where it had wrong requests. Otherwise only where no pair had any: a verdict that another pair
    explains says nothing about this one.
    """
    wrong_places = {place(one) for one in results.weight_updates if one.wrong}
    places = {place(one) for one in counts if one.wrong} if wrong else {place(one) for one in counts} - wrong_places
    for requirement in results.requirements:
        for cell in requirement.cells:
            if (requirement.id, cell.layer, cell.cell) in places:
                yield cell.verdict


def place(count: UpdateCount) -> tuple[str, str, str]:
    """Return the requirement, the layer and the cell of a count."""
    return count.requirement, count.layer, count.cell


def absent_capability(engine: EngineResult | None, by: Invalidation, route: str) -> str:
    """Return why the engine has no such pair; "" if it has it, or if that is not known."""
    for name in (ROUTE_NEEDS.get(route, ""), INVALIDATION_NEEDS.get(by, "")):
        facts = engine.capabilities.get(name, {}) if engine is not None else {}
        if facts.get("present") is False:
            return f"{name}: {facts.get('evidence')}"
    return ""
