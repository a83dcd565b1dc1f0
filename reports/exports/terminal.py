"""What a run writes on a terminal besides its progress, as lines of plain text."""

from __future__ import annotations

from coldproof.harness.schema.switches import ServerSwitches
from coldproof.reports.views import switches


def switch_lines(found: ServerSwitches) -> list[str]:
    """Return what an attached server lets the run test, and a line for each switch that it lacks."""
    return switches.switch_lines(found)
