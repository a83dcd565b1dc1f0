"""Merges several runs into one: all events on one clock, one start, one end, and one row for each known issue.

Shards are parts of one run; `release/bundle/merge.py` refuses those that are not. Units of a fleet are runs of their
own, with other engines, cells and machines: `fleet/merge/` first gives their tests and cells names that differ.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from coldproof.harness.case.known_issues import KnownIssue, passes
from coldproof.harness.schema.results import RequirementResult, Results, Waiver
from coldproof.reports.assemble.assemble import Event, assemble, last_of
from coldproof.reports.format.text import storable

ONCE = ("run_started", "run_finished", "waivers", "qualification")  # the merged run has one of each


@dataclass(frozen=True, slots=True)
class Member:
    """One of the runs. `name`: in facts that differ. `start`: the event. `began`: on the clock of the merged run."""

    name: str
    log: list[Event]
    start: Event
    began: float


def merged_results(
    members: Sequence[Member],
    start: Event,
    ending: Sequence[Event],
    *,
    waivers: Sequence[Waiver],
    without: Sequence[str] = ONCE,
    until: float = 0.0,
    complete: bool,
) -> Results:
    """Return the results of all runs. `start`: of the merged run. `ending`: its own events, which get its end as time.

    `without`: the kinds of events that it has of its own. `until`: the earliest end. Events keep their order in a run.
    """
    events = [
        {**event, "at": round(event["at"] + member.began - member.start["at"], 3)}
        for member in members
        for event in member.log
        if event["event"] not in without
    ]
    events = [start, *sorted(events, key=lambda event: event["at"])]
    end = max(until, *(event["at"] for event in (start, *events)))
    last = (
        {"event": "waivers", "waivers": msgspec.to_builtins(waivers)},
        {"event": "run_finished", "complete": complete},
    )
    return stored([*events, *({"at": end, **event} for event in (*ending, *last))])


def stored(events: list[Event]) -> Results:
    """Return the results of these events as they are written to results.json. Raises LookupError without a start."""
    return msgspec.convert(storable(msgspec.to_builtins(assemble(events))), Results)


def merged_environments(members: Sequence[Member]) -> dict[str, str]:
    """Return the merged facts about the machines."""
    names = dict.fromkeys(name for member in members for name in member.start["environment"])
    return {
        name: merged_values((one.name, one.start["environment"].get(name, "unknown")) for one in members)
        for name in names
    }


def merged_values(values: Iterable[tuple[str, str]]) -> str:
    """Return the value that all share, or each value with the names of its owners."""
    whose: dict[str, list[str]] = defaultdict(list)
    for who, value in values:
        whose[value].append(who)
    if len(whose) == 1:
        return next(iter(whose))
    return "; ".join(f"{value} ({', '.join(dict.fromkeys(who))})" for value, who in whose.items())


def merged_waivers(logs: Sequence[list[Event]]) -> list[Waiver]:
    """Return every known issue with its state in the runs together, and each of its cases once."""
    found: dict[tuple[object, ...], list[Waiver]] = {}
    for log in logs:
        for row in msgspec.convert((last_of(log, "waivers") or {}).get("waivers", []), list[Waiver]):
            key = (row.finding, row.requirement, row.cell, row.signature, row.fingerprint, row.versions)
            found.setdefault(key, []).append(row)
    requirements = assemble([event for log in logs for event in log]).requirements if found else []
    return [_merged(rows, requirements) for rows in found.values()]


def _merged(rows: Sequence[Waiver], requirements: list[RequirementResult]) -> Waiver:
    """Merge the rows of one known issue. It is used if any run used it, and stale only if all together say so."""
    first, used = rows[0], list(dict.fromkeys(name for row in rows for name in row.cases))
    state = "used" if used else first.state
    if not used and len({row.state for row in rows}) > 1:
        issue = KnownIssue(first.requirement, first.versions, first.reason, first.link, cell=first.cell)
        state = "stale" if passes(issue, requirements) else "not exercised"
    return msgspec.structs.replace(first, cases=used, state=state)
