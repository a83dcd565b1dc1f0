"""The input of the merged report: the units with their events, and the facts about the fleet."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from coldproof.harness.fleet.node import EVENTS
from coldproof.harness.fleet.store import Record
from coldproof.harness.fleet.units import Unit
from coldproof.reports.assemble.assemble import Event, last_of, read_events


@dataclass(frozen=True, slots=True)
class Part:
    """A unit, its record (None if it has not run), and its events as its node wrote them."""

    unit: Unit
    record: Record | None
    log: list[Event]
    report: str  # its report folder, relative to the merged report; "" if there is none
    names: dict[str, str] = field(default_factory=dict)  # the old and new names of its cases

    @property
    def start(self) -> Event | None:
        """The event that starts its run."""
        return last_of(self.log, "run_started")

    @property
    def finish(self) -> float:
        """When it ended, in the driver's clock; 0 if it has not run."""
        return self.record.began + self.record.seconds if self.record is not None else 0.0

    @property
    def problem(self) -> str:
        """Why it has no complete result; "" if it has one."""
        return "it has not run" if self.record is None else self.record.problem


@dataclass(frozen=True, slots=True)
class Fleet:
    """The facts about the fleet: its command, its start in the driver's clock, and what all units share."""

    command: str
    version: str
    started: str
    at: float
    environment: dict[str, str]
    interrupted: bool = False


def read_part(unit: Unit, record: Record | None, folder: Path) -> Part:
    """Read the events of a unit. `folder`: its report folder. Raises OSError if the events cannot be read."""
    there = record is not None and (folder / EVENTS).is_file()
    return Part(unit, record, read_events(folder / EVENTS) if there else [], f"units/{unit.id}" if there else "")


def with_unit_test_name(event: Event, unit: Unit) -> Event:
    """Return an event with the unit in its test name, so that the verdicts of two seeds are distinct."""
    return {**event, "test": f"{event['test']} of {unit.id}"} if "test" in event else event
