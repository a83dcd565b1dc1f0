"""The least evidence with which a requirement conforms: one rule for every profile, over all layers of a run.

A requirement below it is NOT EXERCISED. The server layer must have a share of its own, because a fault of the server
(routes, streaming, disconnects) cannot show in the others.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import CellResult
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.text import duration, many

MIN_EXAMPLES, MIN_REQUESTS = 30, 100  # a requirement needs one of the two
SERVER, MIN_SERVER_EXAMPLES = "server", 5


def shortfall(cells: Sequence[CellResult]) -> str:
    """Return why the examples of a requirement in all cells are too few, and what it would take; "" if they suffice."""
    ran = [cell for cell in cells if cell.verdict is not Verdict.UNSUPPORTED]
    server = [cell for cell in ran if cell.layer == SERVER]
    others = [cell for cell in ran if cell.layer != SERVER]
    examples, requests = (
        sum(discriminating_examples(cell) for cell in ran),
        sum(discriminating_requests(cell) for cell in ran),
    )
    if examples < MIN_EXAMPLES and requests < MIN_REQUESTS and not all(cell.exhausted for cell in others or server):
        drawn = f"only {many(examples, 'example')} with {many(requests, 'request')}"
        return f"{drawn}; CONFORMS needs {MIN_EXAMPLES} examples or {MIN_REQUESTS} requests{more_time(ran)}"
    on_server = sum(discriminating_examples(cell) for cell in server)
    if others and server and on_server < MIN_SERVER_EXAMPLES and not all(cell.exhausted for cell in server):
        return (
            f"only {many(on_server, 'example')} in the server layer; CONFORMS needs {MIN_SERVER_EXAMPLES} there"
            + more_time(server, MIN_SERVER_EXAMPLES, math.inf)
        )
    return ""


def discriminating_examples(cell: CellResult) -> int:
    """Return the number of examples whose cold answers could have shown a wrong block: only these are evidence."""
    return cell.examples - round(cell.evidence.get(ReportedEvidence.INSENSITIVE, 0))


def discriminating_requests(cell: CellResult) -> int:
    """Return the number of requests of such examples."""
    return cell.requests - round(cell.evidence.get(ReportedEvidence.INSENSITIVE_REQUESTS, 0))


def more_time(cells: Sequence[CellResult], least: int = MIN_EXAMPLES, requests: float = MIN_REQUESTS) -> str:
    """Return how much longer these cells have to draw to have so many examples or requests, as text."""
    factor, seconds = times_to_floor(cells, least, requests), sum(cell.drawn for cell in cells)
    if not factor or not seconds:
        return ": raise --budget"
    times = math.ceil(factor * 10) / 10
    return f": about {duration(seconds * factor)} for this requirement, a --budget {times:g} times as large"


def times_to_floor(cells: Sequence[CellResult], examples: int = MIN_EXAMPLES, requests: float = MIN_REQUESTS) -> float:
    """Return how many times as long these cells have to draw, at their pace so far; 0 if that is unknown."""
    drawn = sum(discriminating_examples(cell) for cell in cells), sum(discriminating_requests(cell) for cell in cells)
    return min((least / some for least, some in zip((examples, requests), drawn, strict=True) if some), default=0.0)


def seconds_short(cells: Sequence[CellResult]) -> float:
    """Return for how many seconds more a requirement has to be drawn until it has its floor; 0 if that is unknown."""
    ran = [cell for cell in cells if cell.verdict is not Verdict.UNSUPPORTED]
    return sum(cell.drawn for cell in ran) * max(0.0, times_to_floor(ran) - 1)
