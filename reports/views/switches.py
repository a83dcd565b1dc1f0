"""Describes what an attached server lets a run test, and what each switch that it lacks would add."""

from __future__ import annotations

from coldproof.harness.schema.switches import MissingSwitch, ServerSwitches
from coldproof.reports.format.text import many


def now_testable(found: ServerSwitches) -> str:
    """Return as a sentence how many requirements can be tested on the server now, and with all missing switches."""
    now = (
        f"This {found.engine} server lets Coldproof test {len(found.now)} of {many(found.requirements, 'requirement')}"
    )
    if not found.known:
        return f"{now}. Coldproof does not know the switches of this engine."
    if not found.missing:
        return f"{now}: all that it can test over HTTP. It has every switch that Coldproof knows."
    return f"{now} now, and {found.with_all} with all of these switches."


def added(row: MissingSwitch) -> str:
    """Return what a switch adds: in words, and the number of requirements."""
    count = many(len(row.adds_requirements), "requirement")
    if row.alone == len(row.adds_requirements):
        return f"{row.adds}, {count}"
    return f"{row.adds}, {count} ({row.alone or 'none'} with this switch alone)"


def safety(row: MissingSwitch) -> str:
    """Return whether a server in production may have the switch, and why."""
    return f"{'safe' if row.safe else 'not safe'} in production: {row.because}"


def switch_line(row: MissingSwitch) -> str:
    """Return one line about a missing switch."""
    return f"{row.name}: {added(row)}; {safety(row)}; {row.how}"


def switch_lines(found: ServerSwitches) -> list[str]:
    """Return the table as lines of plain text."""
    return [now_testable(found), *(f"  {switch_line(row)}" for row in found.missing)]
