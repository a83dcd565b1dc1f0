"""Merges the events of several shards into those of one run, and assembles the results.

Shards run at different times. In the merged report all shards start at the same moment, so that times are relative to
the start of each shard.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import msgspec

from coldproof.harness.case.known_issues import KnownIssue, passes
from coldproof.harness.release.bundle.run_folder import EVENTS
from coldproof.reports.assemble.assemble import Event, assemble, last_of, read_events
from coldproof.reports.format.text import storable
from coldproof.reports.schema.results import RequirementResult, Results, Waiver

ONCE = ("run_started", "run_finished", "waivers", "qualification")  # the merged run has one of each


def bundle_results(folders: Sequence[Path]) -> Results:
    """Return the results of these folders' events, as they are written to results.json.

    Raises LookupError if a folder has no start of a run, and OSError.
    """
    logs = [read_events(folder / EVENTS) for folder in folders]
    results = assemble(logs[0] if len(logs) == 1 else merge_logs(logs))
    return msgspec.convert(storable(msgspec.to_builtins(results)), Results)


def merge_logs(logs: Sequence[list[Event]]) -> list[Event]:
    """Return the events of several shards as those of one run. Raises LookupError if a shard has no start."""
    starts = [last_of(log, "run_started") for log in logs]
    begun = [start for start in starts if start is not None]
    if len(begun) < len(logs):
        raise LookupError("the events have no start of a run")
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
    events = [{**first, **merged_start(begun)}, *between]
    return [
        *events,
        {"event": "waivers", "at": end, "waivers": waiver_rows(logs, assemble(events).requirements)},
        {"event": "run_finished", "at": end, "complete": complete},
    ]


def merged_start(starts: Sequence[Event]) -> Event:
    """Return the fields of the merged start that may differ between shards."""
    names = dict.fromkeys(name for start in starts for name in start["environment"])
    return {
        "shard": "",
        "seed": merge_values(starts, [start["seed"] for start in starts]),
        "command": merge_values(starts, [start["command"] for start in starts]),
        "environment": {
            name: merge_values(starts, [s["environment"].get(name, "unknown") for s in starts]) for name in names
        },
    }


def merge_values(starts: Sequence[Event], values: Sequence[str]) -> str:
    """Return the value that all shards share, or each value with its shards."""
    if len(set(values)) == 1:
        return values[0]
    where: dict[str, list[str]] = {}
    for start, value in zip(starts, values, strict=True):
        where.setdefault(value, []).append(start.get("shard", ""))
    return "; ".join(f"{value} (shard {', '.join(shards)})" for value, shards in where.items())


def waiver_rows(logs: Sequence[list[Event]], requirements: list[RequirementResult]) -> list[dict[str, object]]:
    """Return every known issue with its state in the merged run."""
    rows: dict[tuple[object, ...], list[Waiver]] = {}
    for log in logs:
        for row in msgspec.convert((last_of(log, "waivers") or {}).get("waivers", []), list[Waiver]):
            rows.setdefault((row.requirement, row.cell, row.signature, row.fingerprint, row.versions), []).append(row)
    return [msgspec.to_builtins(merge_waiver_rows(same, requirements)) for same in rows.values()]


def merge_waiver_rows(rows: list[Waiver], requirements: list[RequirementResult]) -> Waiver:
    """Merge the rows of one known issue. It is used if any shard used it, and stale only if the merged run says so."""
    used = [name for row in rows for name in row.cases]
    states = {row.state for row in rows}
    if used or len(states) == 1:
        state = "used" if used else rows[0].state
    else:
        first = rows[0]
        issue = KnownIssue(first.requirement, first.versions, first.reason, first.link, cell=first.cell)
        state = "stale" if passes(issue, requirements) else "not exercised"
    return msgspec.structs.replace(rows[0], cases=used, state=state)
