"""Sums the requests after updates of the weights over a run's examples, by requirement, cell and pair."""

from __future__ import annotations

from typing import Any

import msgspec

from coldproof.harness.schema.weight_updates import UpdateCount

PairFields = dict[str, Any]  # the counts of one pair in one example


def update_counts(events: list[dict[str, Any]]) -> list[UpdateCount]:
    """Return one count for each requirement, cell of a layer, route and invalidation, in the order of the examples.

    Hits are known only if every example knows them.
    """
    sums: dict[tuple[str, ...], UpdateCount] = {}
    for event in events:
        for pair in event["weight_pairs"] if event["event"] == "example" else ():
            fields = {"requirement": event["requirement"], "cell": event["cell"], "layer": event.get("layer", "")}
            one = msgspec.convert({**fields, **pair}, UpdateCount)
            place = (one.requirement, one.layer, one.cell, one.route, one.invalidation)
            sums[place] = added(sums[place], one) if place in sums else one
    return list(sums.values())


def added(left: UpdateCount, right: UpdateCount) -> UpdateCount:
    """Return the sum of two counts of the same pair."""
    hits = None if left.hits is None or right.hits is None else left.hits + right.hits
    return msgspec.structs.replace(
        left, requests=left.requests + right.requests, wrong=left.wrong + right.wrong, hits=hits
    )
