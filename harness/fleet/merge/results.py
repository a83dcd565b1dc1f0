"""Merges the runs of a fleet into one result: each event once, in its column.

A column is a kind of machine, a run and a cell. Seeds and shards are merged within a column, like several tests of one
requirement: the worst verdict counts and evidence is summed. Lost, failed and missing units show nothing.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec

from coldproof.harness.fleet.matrix import PROFILE_CELLS, Unit
from coldproof.harness.fleet.merge.shared_facts import engine_summary, merged_start, shared_events
from coldproof.harness.fleet.merge.unit_report import Fleet, Part, with_unit_test_name
from coldproof.harness.fleet.store import Record
from coldproof.harness.release.run.merged import ONCE, Member, merged_results, merged_waivers
from coldproof.harness.schema.results import FleetRow, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import Event, assemble
from coldproof.reports.format.text import many

# Events that are not copied from a unit: the merged result has its own. A unit's problem is in its record.
UNIT_ONLY = (*ONCE, "selftest", "engine", "calibration", "measured", "problem", "phase")
NAMED = {"case": ("case",), "finding": ("replay",), "shipped": ("replay",)}  # the parts of events that name a cell
MAX_NAMED = 3  # units named in a message


def fleet_results(fleet: Fleet, parts: Sequence[Part]) -> Results:
    """Return the merged results of all units. A unit begins on the driver's clock, not on its node's."""
    begun = [(part, start, part.record) for part in parts if (start := part.start) is not None and part.record]
    units = [
        Member(part.unit.machine.name, list(unit_events(part, rec)), start, rec.began) for part, start, rec in begun
    ]
    ran = [part for part, *_ in begun]
    problem = problem_of(fleet, parts)
    results = merged_results(
        units,
        {"event": "run_started", "at": fleet.at, **merged_start(fleet, ran, units)},
        [*shared_events(ran), *([{"event": "problem", "message": problem, "usage": False}] if problem else [])],
        waivers=merged_waivers([[with_unit_test_name(event, part.unit) for event in part.log] for part in ran]),
        without=UNIT_ONLY,
        until=max((part.finish for part in ran), default=0.0),
        complete=not problem,
    )
    return msgspec.structs.replace(results, fleet=[fleet_row(part) for part in parts])


def unit_events(part: Part, record: Record) -> Iterator[Event]:
    """Yield a unit's events with merged names. Tests without a verdict become an ERROR if the unit failed."""
    concluded = {(e["requirement"], e["cell"], e["test"]) for e in part.log if e["event"] == "verdict"}
    for event in part.log:
        yield merged_event(event, part.unit)
        if event["event"] != "requirement" or not record.problem:
            continue
        if (event["id"], event["cell"], event["test"]) not in concluded:
            yield merged_event(error_verdict(event, record), part.unit)


def merged_event(event: Event, unit: Unit) -> Event:
    """Return an event with its names in the merged result."""
    changed = with_unit_test_name(event, unit)
    named = {name: {**event[name], "cell": unit.column(event[name]["cell"])} for name in NAMED.get(event["event"], ())}
    return {**changed, **named, **({"cell": unit.column(event["cell"])} if "cell" in event else {})}


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
        "cold": {},
        "seconds": 0.0,
        "drawn": 0.0,
        "share": 0.0,
        "exhausted": False,
        "case": None,
        "further": [],
        "absent": [],
        "missing": [],
        "narrowed": [],
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
        lost=record.lost if record is not None else 0,
        report=part.report,
    )
