"""Finds events that a run wrote and nobody can read: the numbers of a process have no gap.

Without this, an event that is lost with its line would make a run look as if it had never been: a counterexample that
nobody counts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection
from typing import Any

Event = dict[str, Any]


def with_problem_of_gaps(events: list[Event]) -> list[Event]:
    """Return the events of a run, and a problem behind them if some are missing and the run names no other problem."""
    missing = count_missing(events)
    if not missing or any(event["event"] == "problem" for event in events):
        return events
    message = f"{missing} events of the run are missing or cannot be read: its verdicts do not rest on all that it did"
    return [*events, {"event": "problem", "at": events[-1]["at"], "message": message, "usage": False}]


def count_missing(events: list[Event]) -> int:
    """Return how many numbers are missing between those of the events of each process."""
    numbers: dict[str, set[int]] = defaultdict(set)
    for event in events:
        number = event.get("number")
        if type(number) is int and number >= 0:
            numbers[str(event.get("process"))].add(number)
    return sum(map(missing_numbers, numbers.values()))


def missing_numbers(numbers: Collection[int]) -> int:
    """Return how many numbers are missing before the largest of these, which differ and begin at 0."""
    return max(numbers, default=-1) + 1 - len(numbers)
