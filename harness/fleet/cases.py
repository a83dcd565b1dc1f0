"""The counterexamples of all runs in one folder: two of one name get two names, and one that was found twice is one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.fleet.part import Part
from reports.assemble import Event
from reports.schema import encode, read_case
from reports.text import unique

CASES = "cases"


def named_apart(parts: Sequence[Part]) -> list[Part]:
    """The same runs with the names that their cases have in the whole.

    A case's name follows from its workload and cell: with one seed it may be found on several kinds of machines, which
    are as many cases, and with several seeds twice in one column, which is the same case.
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
                event = {**event, "waivers": [renamed(row, mine) for row in event["waivers"]]}
            log.append(event)
        changed.append(dataclasses.replace(part, log=log, names=mine))
    return changed


def renamed(row: Event, names: dict[str, str]) -> Event:
    """A known issue's row with the new names of the cases that it waived."""
    return {**row, "cases": [names.get(name, name) for name in row["cases"]]}


def copy_cases(parts: Sequence[Part], out: Path) -> None:
    """Every case into the whole's own folder. Raises OSError."""
    folder = out / CASES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in parts:
        for old, new in part.names.items():
            for path in (out / part.report / CASES).glob(f"{old}.*"):
                copy_case(path, folder / f"{new}{path.suffix}", new)


def copy_case(path: Path, to: Path, name: str) -> None:
    """One file; a saved case says its own name."""
    if path.suffix == ".json" and path.stem != name:
        to.write_bytes(encode(msgspec.structs.replace(read_case(path), id=name)))
    elif not to.exists():
        shutil.copyfile(path, to)
