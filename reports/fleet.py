"""The runs of a fleet as its report lists them: what is wanting first, each with the way to its own report."""

from __future__ import annotations

from reports.schema import FleetRow, Results
from reports.text import file_link

_ORDER = ("failed", "missing", "done")


def fleet_rows(results: Results) -> list[FleetRow]:
    """Failed and missing ones first, otherwise in the matrix' order."""
    return sorted(results.fleet, key=lambda row: _ORDER.index(row.state) if row.state in _ORDER else len(_ORDER))


def fleet_link(row: FleetRow) -> str:
    """A run's own page, below the whole's."""
    return file_link(*row.report.split("/"), "index.html")


def fleet_counts(results: Results) -> str:
    """How many runs are how far, in words; "" for the results of one run."""
    found = {state: sum(row.state == state for row in results.fleet) for state in _ORDER}
    lost = sum(len(row.lost) for row in results.fleet)
    words = [f"{count} {state}" for state, count in reversed(found.items()) if count]
    return ", ".join([*words, *([f"{lost} lost on the way and run again"] if lost else [])])
