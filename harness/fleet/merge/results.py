"""Merges the runs of a fleet into one result: each event once, in its column.

A column is a kind of machine, a run and a cell. Seeds and shards are merged within a column, like several tests of one
requirement: the worst verdict counts and evidence is summed. Lost, failed and missing units show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from coldproof.harness.fleet.matrix import PROFILE_CELLS, Unit
from coldproof.harness.fleet.merge.shared_facts import (
    engine_and_calibration,
    engine_summary,
    known_issue_rows,
    merged_start,
    merged_timing,
    self_tests,
)
from coldproof.harness.fleet.merge.unit_report import Fleet, Part, with_unit_test_name
from coldproof.harness.fleet.store import Record
from coldproof.harness.release.bundle.merge import ONCE
from coldproof.reports.assemble.assemble import Event, assemble
from coldproof.reports.format.text import many, storable
from coldproof.reports.schema.results import FleetRow, Results
from coldproof.reports.schema.verdict import Verdict

# Events that are not copied from a unit: the merged result has its own. A unit's problem is in its record.
UNIT_ONLY = (*ONCE, "selftest", "engine", "calibration", "measured", "problem", "phase")
MAX_NAMED = 3  # units named in a message


def fleet_results(fleet: Fleet, parts: Sequence[Part]) -> Results:
    """Return the merged results of all units."""
    begun = [part for part in parts if part.start is not None]
    events = sorted((event for part in begun for event in unit_events(part)), key=lambda event: event["at"])
    end = max([fleet.at, *(event["at"] for event in events), *(part.finish for part in begun)])
    made = [
        {"event": "run_started", "at": fleet.at, **merged_start(fleet, begun)},
        {"event": "selftest", "at": fleet.at, "rows": self_tests(begun)},
        *events,
        *engine_and_calibration(begun, end),
        *merged_timing(begun, end),
        {"event": "waivers", "at": end, "waivers": known_issue_rows(begun)},
    ]
    problem = problem_of(fleet, parts)
    if problem:
        made.append({"event": "problem", "at": end, "message": problem, "usage": False})
    made.append({"event": "run_finished", "at": end, "complete": not problem})
    results = assemble([e for e in made if e["event"] != "selftest" or e["rows"]])
    results = msgspec.structs.replace(results, fleet=[fleet_row(part) for part in parts])
    return msgspec.convert(storable(msgspec.to_builtins(results)), Results)


def unit_events(part: Part) -> Iterator[Event]:
    """Yield a unit's events in the driver's clock and with merged names. Tests without a verdict become an ERROR."""
    first = part.start
    if first is None or part.record is None:
        return
    later = part.record.began - first["at"]
    concluded = {(e["requirement"], e["cell"], e["test"]) for e in part.log if e["event"] == "verdict"}
    for event in part.log:
        if event["event"] in UNIT_ONLY:
            continue
        yield merged_event(event, part.unit, later)
        if event["event"] != "requirement" or not part.record.problem:
            continue
        if (event["id"], event["cell"], event["test"]) not in concluded:
            yield merged_event(error_verdict(event, part.record), part.unit, later)


def merged_event(event: Event, unit: Unit, later: float) -> Event:
    """Return an event with its time and names in the merged result. `later`: seconds to add."""
    changed = {**with_unit_test_name(event, unit), "at": round(event["at"] + later, 3)}
    if "cell" in event:
        changed["cell"] = unit.column(event["cell"])
    if event["event"] == "case":
        changed["case"] = {**event["case"], "cell": unit.column(event["case"]["cell"])}
    if event["event"] == "finding":
        changed["replay"] = {**event["replay"], "cell": unit.column(event["replay"]["cell"])}
    return changed


def error_verdict(announced: Event, record: Record) -> Event:
    """Return an ERROR verdict for a test that its run did not conclude."""
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
    """Return a message that names the failed and missing units; "" if there are none."""
    wanting = [part for part in parts if part.problem]
    if not wanting:
        return ""
    named = "; ".join(f"{part.unit.id}: {part.problem}" for part in wanting[:MAX_NAMED])
    more = f"; and {len(wanting) - MAX_NAMED} more" if len(wanting) > MAX_NAMED else ""
    word = "the fleet was interrupted: " if fleet.interrupted else ""
    return f"{word}{len(wanting)} of {many(len(parts), 'run')} failed or are missing: {named}{more}"


def fleet_row(part: Part) -> FleetRow:
    """Return a unit's row in the report."""
    unit, record = part.unit, part.record
    alone = assemble(part.log) if part.start is not None else None
    cells = dict.fromkeys(cell.cell for r in alone.requirements for cell in r.cells) if alone is not None else {}
    failed = bool(part.problem)
    return FleetRow(
        unit=unit.id,
        machine=unit.machine.name,
        run=unit.run.label,
        cells=", ".join(cells) or unit.cell or PROFILE_CELLS,
        engine=engine_summary(alone.engine) if alone is not None and alone.engine is not None else unit.run.engine,
        seed=f"{unit.seed}, shard {unit.shard}" if unit.shard else str(unit.seed),
        state="missing" if record is None else "failed" if failed else "done",
        said=part.problem if failed or alone is None else alone.headline,
        seconds=record.seconds if record is not None else 0.0,
        node=record.node if record is not None else "",
        lost=record.lost if record is not None else [],
        report=part.report,
    )
