"""Collects the counterexamples of all runs in one folder, with unique names and without duplicates."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path

import msgspec

from coldproof.harness.fleet.merge.unit_report import Part
from coldproof.reports.assemble.assemble import Event
from coldproof.reports.format.text import unique
from coldproof.reports.schema.case import read_case
from coldproof.reports.schema.results import encode

CASES = "cases"


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
                event = {**event, "waivers": [rename_waived_cases(row, mine) for row in event["waivers"]]}
            log.append(event)
        changed.append(dataclasses.replace(part, log=log, names=mine))
    return changed


def rename_waived_cases(row: Event, names: dict[str, str]) -> Event:
    """Return a known issue's row with the new names of its cases."""
    return {**row, "cases": [names.get(name, name) for name in row["cases"]]}


def copy_cases(parts: Sequence[Part], out: Path) -> None:
    """Copy every case to the merged report's folder. Raises OSError."""
    folder = out / CASES
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for part in parts:
        for old, new in part.names.items():
            for path in (out / part.report / CASES).glob(f"{old}.*"):
                copy_case(path, folder / f"{new}{path.suffix}", new)


def copy_case(path: Path, to: Path, name: str) -> None:
    """Copy one file of a case. A case file contains its own name, which is changed too."""
    if path.suffix == ".json" and path.stem != name:
        to.write_bytes(encode(msgspec.structs.replace(read_case(path), id=name)))
    elif not to.exists():
        shutil.copyfile(path, to)
