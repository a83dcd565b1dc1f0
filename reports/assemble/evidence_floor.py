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
            + more_time(server, MIN_SERVER_EXAMPLES)
        )
    return ""


def discriminating_examples(cell: CellResult) -> int:
    """Return the number of examples whose cold answers could have shown a wrong block: only these are evidence."""
    return cell.examples - round(cell.evidence.get(ReportedEvidence.INSENSITIVE, 0))


def discriminating_requests(cell: CellResult) -> int:
    """Return the number of requests of such examples."""
    return cell.requests - round(cell.evidence.get(ReportedEvidence.INSENSITIVE_REQUESTS, 0))


def more_time(cells: Sequence[CellResult], least: int = MIN_EXAMPLES) -> str:
    """Return how much longer these cells have to draw examples, at their speed so far, as text."""
    examples, seconds = sum(discriminating_examples(cell) for cell in cells), sum(cell.drawn for cell in cells)
    if not examples or not seconds:
        return ": raise --budget"
    factor = math.ceil(least / examples * 10) / 10
    return f": about {duration(seconds / examples * least)} for this requirement, a --budget {factor:g} times as large"
