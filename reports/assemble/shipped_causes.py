"""Joins what a run drew on a repaired engine with the known causes that the engine has as it is shipped.

Invariant: a known cause hides nothing. What the repaired engine did not show to conform keeps its verdict, and so does
a requirement with too few examples.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import msgspec

from coldproof.harness.schema.findings import FindingReplay, ReplayResult
from coldproof.harness.schema.results import CellResult
from coldproof.harness.schema.verdict import Verdict, worst
from coldproof.reports.assemble.evidence_floor import discriminating_examples
from coldproof.reports.format.text import many

Event = dict[str, Any]


class ShippedCause(msgspec.Struct, frozen=True):
    """A finding whose case still fails on the engine as it is shipped, with the verdict of its replay and why.

    CONFORMS: the finding is a remark.
    """

    finding: str
    layer: str
    cell: str
    verdict: Verdict
    reason: str


def shipped_causes(events: Sequence[Event]) -> dict[str, list[ShippedCause]]:
    """Return the causes that the engine still has as it is shipped, by requirement."""
    found: dict[str, list[ShippedCause]] = defaultdict(list)
    for event in events:
        if event["event"] != "shipped" or event["verdict"] is None:
            continue
        one = msgspec.convert(event["replay"], FindingReplay)
        cause = ShippedCause(one.finding, event.get("layer", ""), one.cell, Verdict(event["verdict"]), event["reason"])
        found[one.requirement].append(cause)
    return found


def cell_with_causes(cell: CellResult, causes: Sequence[ShippedCause]) -> CellResult:
    """Return the result of a cell that also counts the causes that the engine has there as it is shipped."""
    own = [one for one in causes if (one.layer, one.cell) == (cell.layer, cell.cell)]
    verdict, reason = with_causes(cell.verdict, cell.reason, own, examples=discriminating_examples(cell))
    return msgspec.structs.replace(cell, verdict=verdict, reason=reason)


def with_causes(verdict: Verdict, reason: str, causes: Sequence[ShippedCause], *, examples: int) -> tuple[Verdict, str]:
    """Return the verdict and reason with the known causes. `verdict`: that of the examples with them repaired."""
    names = list(dict.fromkeys(one.finding for one in causes))
    if not names:
        return verdict, reason
    counted, them = f"{many(len(names), 'cause')} ({', '.join(names)})", "it" if len(names) == 1 else "them"
    whole = worst([verdict, *(one.verdict for one in causes)])
    if whole is Verdict.KNOWN_ISSUE and verdict is Verdict.CONFORMS:
        return whole, f"{counted}; conforms in {many(examples, 'example')} with {them} repaired"
    if whole is verdict:
        return verdict, f"{reason}; besides it, {counted} on the engine as it is shipped"
    worse = next(one for one in causes if one.verdict is whole)
    words = worse.reason if whole is not Verdict.KNOWN_ISSUE else counted
    return whole, f"on the engine as it is shipped: {words}; with {them} repaired, {verdict.value}: {reason}"


def replay_counts(replays: Sequence[FindingReplay]) -> str:
    """Return what the replays on the engine as it is shipped showed, in words; "" without any."""
    found = [one.result for one in replays if not one.repaired]
    said = [f"{found.count(one)} {one.value}" for one in ReplayResult if one in found]
    return ", ".join(said)
