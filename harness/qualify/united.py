"""The runs of several shards as one: their events in one order, and the results that follow from these.

Shards ran whenever a machine was free; in the report they began at the same moment, so that its times are a machine's.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from harness.known_issues import KnownIssue, passes
from harness.qualify.part import EVENTS
from reports.assemble import Event, assemble, last_of, read_events
from reports.schema import RequirementResult, Results, Waiver
from reports.text import storable

ONCE = ("run_started", "run_finished", "waivers", "qualification")  # of the whole, not of each shard


def results_of(folders: Sequence[Path]) -> Results:
    """What the events of these folders say together, as it is written to results.json.

    Raises LookupError where one holds no start of a run, OSError.
    """
    logs = [read_events(folder / EVENTS) for folder in folders]
    results = assemble(logs[0] if len(logs) == 1 else united(logs))
    return msgspec.convert(storable(msgspec.to_builtins(results)), Results)


def united(logs: Sequence[list[Event]]) -> list[Event]:
    """One run's events of several shards'. Raises LookupError where one holds no start."""
    starts = [last_of(log, "run_started") for log in logs]
    begun = [start for start in starts if start is not None]
    if len(begun) < len(logs):
        raise LookupError("the events hold no start of a run")
    first = min(begun, key=lambda start: start["at"])
    between = [
        {**event, "at": round(event["at"] - start["at"] + first["at"], 3)}
        for log, start in zip(logs, begun, strict=True)
        for event in log
        if event["event"] not in ONCE
    ]
    between.sort(key=lambda event: event["at"])
    end = between[-1]["at"] if between else first["at"]
    finished = [last_of(log, "run_finished") for log in logs]
    complete = all(event is not None and event["complete"] for event in finished)
    events = [{**first, **common(begun)}, *between]
    return [
        *events,
        {"event": "waivers", "at": end, "waivers": waivers(logs, assemble(events).requirements)},
        {"event": "run_finished", "at": end, "complete": complete},
    ]


def common(starts: Sequence[Event]) -> Event:
    """What the start of the whole says where the shards' say different things."""
    names = dict.fromkeys(name for start in starts for name in start["environment"])
    return {
        "shard": "",
        "seed": told(starts, [start["seed"] for start in starts]),
        "command": told(starts, [start["command"] for start in starts]),
        "environment": {name: told(starts, [s["environment"].get(name, "not told") for s in starts]) for name in names},
    }


def told(starts: Sequence[Event], values: Sequence[str]) -> str:
    """A value that all shards have, or each value with its shards."""
    if len(set(values)) == 1:
        return values[0]
    where: dict[str, list[str]] = {}
    for start, value in zip(starts, values, strict=True):
        where.setdefault(value, []).append(start.get("shard", ""))
    return "; ".join(f"{value} (shard {', '.join(shards)})" for value, shards in where.items())


def waivers(logs: Sequence[list[Event]], requirements: list[RequirementResult]) -> list[dict[str, object]]:
    """Every known issue with what became of it in the whole."""
    rows: dict[tuple[object, ...], list[Waiver]] = {}
    for log in logs:
        for row in msgspec.convert((last_of(log, "waivers") or {}).get("waivers", []), list[Waiver]):
            rows.setdefault((row.requirement, row.cell, row.signature, row.fingerprint, row.versions), []).append(row)
    return [msgspec.to_builtins(one_waiver(same, requirements)) for same in rows.values()]


def one_waiver(rows: list[Waiver], requirements: list[RequirementResult]) -> Waiver:
    """One known issue's rows in several shards as one: used where any used it; stale only where the whole says so."""
    used = [name for row in rows for name in row.cases]
    states = {row.state for row in rows}
    if used or len(states) == 1:
        state = "used" if used else rows[0].state
    else:
        first = rows[0]
        issue = KnownIssue(first.requirement, first.versions, first.reason, first.link, cell=first.cell)
        state = "stale" if passes(issue, requirements) else "not exercised"
    return msgspec.structs.replace(rows[0], cases=used, state=state)
