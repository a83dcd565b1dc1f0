"""The input of the merged report: the units with their events and counterexamples, and the facts about the fleet."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from coldproof.harness.fleet.matrix import Unit
from coldproof.harness.fleet.node import EVENTS
from coldproof.harness.fleet.store import Record
from coldproof.harness.schema.case import TRACE, read_case
from coldproof.harness.schema.results import encode
from coldproof.harness.schema.stored_files import copy_file
from coldproof.reports.assemble.assemble import Event, last_of, read_events
from coldproof.reports.exports.case_trace import trace_json
from coldproof.reports.files.own_folder import claim, make_sub_folder, remove_listed
from coldproof.reports.format.text import unique

CASES = "cases"


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


def with_unique_case_names(parts: Sequence[Part]) -> list[Part]:
    """Return the parts with unique case names.

    A case's name follows from its workload and cell. The same name in two columns means two cases; the same name twice
    in one column (from several seeds) means one case.
    """
    taken: set[str] = set()
    names: dict[tuple[str, str], str] = {}  # column and name -> name in the whole
    changed = []
    for part in parts:
        log: list[Event] = []
        mine: dict[str, str] = {}
        for event in part.log:
            if event["event"] == "case":
                case = event["case"]
                place = (part.unit.column(case["cell"]), case["id"])
                known = place in names
                mine[case["id"]] = names.setdefault(place, "") or unique(case["id"], taken)
                names[place] = mine[case["id"]]
                if known:
                    continue
                event = {**event, "case": {**case, "id": mine[case["id"]]}}
            elif event["event"] == "waivers":
                rows = [{**row, "cases": [mine.get(name, name) for name in row["cases"]]} for row in event["waivers"]]
                event = {**event, "waivers": rows}
            log.append(event)
        changed.append(dataclasses.replace(part, log=log, names=mine))
    return changed


def copy_cases(parts: Sequence[Part], out: Path) -> None:
    """Copy every case to the merged report's folder. Raises OSError."""
    folder = out / CASES
    remove_listed(out, f"{CASES}/")
    make_sub_folder(folder)
    for part in parts:
        for old, new in part.names.items():
            for path in (out / part.report / CASES).glob(f"{old}.*"):
                copy_case(path, folder / f"{new}{path.name.removeprefix(old)}", new)


def copy_case(path: Path, to: Path, name: str) -> None:
    """Copy one file of a case. A case file contains its own name, which is changed too, and so does its trace."""
    renamed = not path.name.startswith(f"{name}.")
    if renamed and path.name.endswith(TRACE):
        case = read_case(path.with_name(f"{path.name.removesuffix(TRACE)}.json"))
        claim(to).write_text(trace_json(msgspec.structs.replace(case, id=name)))
    elif renamed and path.suffix == ".json":
        claim(to).write_bytes(encode(msgspec.structs.replace(read_case(path), id=name)))
    elif not to.exists():
        copy_file(path, claim(to))
