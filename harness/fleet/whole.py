"""The runs of a fleet as one: each event once, under the column that it belongs to.

A column is a kind of machine with a run's cell on it. Seeds and shards are not columns: as with several tests of one
requirement, the worst verdict stands and evidence is added up. What was lost, failed or is missing shows nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from harness.fleet.common import engine_and_calibration, known, measured, named, self_tests, start
from harness.fleet.part import Fleet, Part, renamed
from harness.fleet.store import Record
from harness.fleet.units import CHOSEN, Unit
from reports.assemble import Event, assemble
from reports.schema import FleetRow, Results, Verdict
from reports.text import many, storable

# Of each run alone: the whole's own are made of all of them. What went wrong in one is in its unit's record.
ALONE = (
    "run_started",
    "run_finished",
    "waivers",
    "qualification",
    "selftest",
    "engine",
    "calibration",
    "measured",
    "problem",
    "phase",
)
NAMED = 3  # units in a sentence


def results_of(fleet: Fleet, parts: Sequence[Part]) -> Results:
    """All runs as one."""
    begun = [part for part in parts if part.start is not None]
    events = sorted((event for part in begun for event in moved(part)), key=lambda event: event["at"])
    end = max([fleet.at, *(event["at"] for event in events), *(part.finish for part in begun)])
    made = [
        {"event": "run_started", "at": fleet.at, **start(fleet, begun)},
        {"event": "selftest", "at": fleet.at, "rows": self_tests(begun)},
        *events,
        *engine_and_calibration(begun, end),
        *measured(begun, end),
        {"event": "waivers", "at": end, "waivers": known(begun)},
    ]
    problem = problem_of(fleet, parts)
    if problem:
        made.append({"event": "problem", "at": end, "message": problem, "usage": False})
    made.append({"event": "run_finished", "at": end, "complete": not problem})
    results = assemble([e for e in made if e["event"] != "selftest" or e["rows"]])
    results = msgspec.structs.replace(results, fleet=[row(part) for part in parts])
    return msgspec.convert(storable(msgspec.to_builtins(results)), Results)


def moved(part: Part) -> Iterator[Event]:
    """A run's events by its driver's clock, in its column, with its seed; what it did not conclude is an ERROR."""
    first = part.start
    if first is None or part.record is None:
        return
    later = part.record.began - first["at"]
    concluded = {(e["requirement"], e["cell"], e["test"]) for e in part.log if e["event"] == "verdict"}
    for event in part.log:
        if event["event"] in ALONE:
            continue
        yield placed(event, part.unit, later)
        if event["event"] != "requirement" or not part.record.problem:
            continue
        if (event["id"], event["cell"], event["test"]) not in concluded:
            yield placed(unconcluded(event, part.record), part.unit, later)


def placed(event: Event, unit: Unit, later: float) -> Event:
    """One event as it stands in the whole."""
    changed = {**renamed(event, unit), "at": round(event["at"] + later, 3)}
    if "cell" in event:
        changed["cell"] = unit.column(event["cell"])
    if event["event"] == "case":
        changed["case"] = {**event["case"], "cell": unit.column(event["case"]["cell"])}
    return changed


def unconcluded(announced: Event, record: Record) -> Event:
    """The verdict of a test that its run did not come to."""
    return {
        "event": "verdict",
        "at": announced["at"],
        "requirement": announced["id"],
        "cell": announced["cell"],
        "test": announced["test"],
        "verdict": Verdict.ERROR,
        "reason": record.problem,
        "examples": 0,
        "requests": 0,
        "evidence": {},
        "seconds": 0.0,
    }


def problem_of(fleet: Fleet, parts: Sequence[Part]) -> str:
    """What is wanting in the whole, in a sentence; "" where each unit had its say."""
    wanting = [part for part in parts if part.problem]
    if not wanting:
        return ""
    named = "; ".join(f"{part.unit.id}: {part.problem}" for part in wanting[:NAMED])
    more = f"; and {len(wanting) - NAMED} more" if len(wanting) > NAMED else ""
    word = "the fleet was interrupted: " if fleet.interrupted else ""
    return f"{word}{len(wanting)} of {many(len(parts), 'run')} failed or are missing: {named}{more}"


def row(part: Part) -> FleetRow:
    """A unit's line in the report."""
    unit, record = part.unit, part.record
    alone = assemble(part.log) if part.start is not None else None
    cells = dict.fromkeys(cell.cell for r in alone.requirements for cell in r.cells) if alone is not None else {}
    failed = bool(part.problem)
    return FleetRow(
        unit=unit.id,
        machine=unit.machine.name,
        run=unit.run.label,
        cells=", ".join(cells) or unit.cell or CHOSEN,
        engine=named(alone.engine) if alone is not None and alone.engine is not None else unit.run.engine,
        seed=f"{unit.seed}, shard {unit.shard}" if unit.shard else str(unit.seed),
        state="missing" if record is None else "failed" if failed else "done",
        said=part.problem if failed or alone is None else alone.headline,
        seconds=record.seconds if record is not None else 0.0,
        node=record.node if record is not None else "",
        lost=record.lost if record is not None else [],
        report=part.report,
    )
