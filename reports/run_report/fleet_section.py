"""The table of a fleet's runs: failed and missing runs first, each with a link to its own report."""

from __future__ import annotations

from coldproof.reports.format.text import file_link
from coldproof.reports.schema.results import FleetRow, Results

_ORDER = ("failed", "missing", "done")


def fleet_rows(results: Results) -> list[FleetRow]:
    """Return the runs, failed and missing ones first, otherwise in the order of the matrix."""
    return sorted(results.fleet, key=lambda row: _ORDER.index(row.state) if row.state in _ORDER else len(_ORDER))


def fleet_link(row: FleetRow) -> str:
    """Return the relative link to a run's own report."""
    return file_link(*row.report.split("/"), "index.html")


def fleet_counts(results: Results) -> str:
    """Return the number of runs in each state as text; "" for the results of a single run."""
    found = {state: sum(row.state == state for row in results.fleet) for state in _ORDER}
    lost = sum(len(row.lost) for row in results.fleet)
    parts = [f"{count} {state}" for state, count in reversed(found.items()) if count]
    return ", ".join([*parts, *([f"{lost} lost and repeated"] if lost else [])])
