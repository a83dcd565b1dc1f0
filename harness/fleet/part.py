"""One unit as the report of the whole sees it, and the fleet that it is a part of."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from harness.fleet.remote import EVENTS
from harness.fleet.store import Record
from harness.fleet.units import Unit
from reports.assemble import Event, last_of, read_events


@dataclass(frozen=True, slots=True)
class Part:
    """A unit, what became of it (None: nothing yet), and its events as its node wrote them."""

    unit: Unit
    record: Record | None
    log: list[Event]
    report: str  # its folder, seen from the whole's; "" where there is none
    names: dict[str, str] = field(default_factory=dict)  # its cases' names in the whole

    @property
    def start(self) -> Event | None:
        """Where its run began."""
        return last_of(self.log, "run_started")

    @property
    def finish(self) -> float:
        """When it was through."""
        return self.record.began + self.record.seconds if self.record is not None else 0.0

    @property
    def problem(self) -> str:
        """Why it says less than a whole run; "" where it does not."""
        return "it has not run" if self.record is None else self.record.problem


@dataclass(frozen=True, slots=True)
class Fleet:
    """What is the fleet's own: the command, when it began by its driver's clock, and the facts that all runs share."""

    command: str
    version: str
    started: str
    at: float
    environment: dict[str, str]
    interrupted: bool = False


def part_of(unit: Unit, record: Record | None, folder: Path) -> Part:
    """A unit with the events that its run left. `folder`: its report folder. Raises OSError where that is gone."""
    there = record is not None and (folder / EVENTS).is_file()
    return Part(unit, record, read_events(folder / EVENTS) if there else [], f"units/{unit.id}" if there else "")


def renamed(event: Event, unit: Unit) -> Event:
    """With the seed in the test's name: two seeds' verdicts are two."""
    return {**event, "test": f"{event['test']} of {unit.id}"} if "test" in event else event
