"""Runs all units: schedules them, stores their messages, and retries the units of lost nodes.

An attempt that ended is never repeated, whatever its verdict. A lost attempt counts for nothing. Each unit is counted
once or reported as missing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coldproof.harness.fleet.cluster import Cluster, NodeLost, TaskFailed
from coldproof.harness.fleet.matrix import Unit
from coldproof.harness.fleet.node import EventLines, Message, Order, RunEnded, RunStarted
from coldproof.harness.fleet.store import Record, Store, failed_record
from coldproof.reports.format.text import duration, many, one_line

POLL_SECONDS = 1.0
PROGRESS_SECONDS = 30.0


@dataclass(slots=True)
class Attempt:
    """One unit with its lost attempts. `began`: when a node started it; None while it waits."""

    unit: Unit
    lost: list[str] = field(default_factory=list)
    began: float | None = None
    node: str = ""


@dataclass(slots=True, kw_only=True)
class Driver:
    """Runs the units of one start of a fleet."""

    nodes: Cluster
    store: Store
    order: Callable[[Unit], Order]
    digest: Callable[[Unit], str]
    tell: Callable[[str], None]
    workers: int | None  # the most runs at a time
    retries: int  # of each lost unit
    waiting: deque[Attempt] = field(default_factory=deque)
    out: dict[str, Attempt] = field(default_factory=dict)  # by unit
    done: list[Record] = field(default_factory=list)
    reported_at: float = field(default_factory=time.monotonic)

    def drive(self, units: Sequence[Unit]) -> list[Record]:
        """Run all units, and return a record of each."""
        self.waiting.extend(Attempt(unit) for unit in units)
        while self.waiting or self.out:
            while self.waiting and (self.workers is None or len(self.out) < self.workers):
                self.send(self.waiting.popleft())
            for unit, message in self.nodes.messages(POLL_SECONDS):
                if unit in self.out:  # ignore how a task ended after its run has ended
                    self.take(self.out[unit], message)
            if time.monotonic() - self.reported_at > PROGRESS_SECONDS:
                self.progress()
        return self.done

    def send(self, one: Attempt) -> None:
        """Schedule an attempt."""
        one.began, one.node = None, ""
        self.out[one.unit.id] = one
        self.store.begin(one.unit.id)
        self.nodes.start(self.order(one.unit), one.unit.machine)

    def take(self, one: Attempt, message: Message | NodeLost | TaskFailed) -> None:
        """Process a message of an attempt."""
        match message:
            case RunStarted(node):
                one.began, one.node = time.time(), node
                self.tell(f"{one.unit.id}: began on node {node}")
            case EventLines(lines):
                self.store.add(one.unit.id, lines)
            case RunEnded():
                self.end(one, message)
            case NodeLost(reason):
                self.lose(one, one_line(reason, 200))
            case TaskFailed(reason):
                del self.out[one.unit.id]
                self.store.put_aside(one.unit.id)
                self.keep(failed_record(one.unit.id, self.digest(one.unit), one_line(reason), one.lost))

    def end(self, one: Attempt, ended: RunEnded) -> None:
        """Store a run that ended, with or without a verdict. It is not retried."""
        del self.out[one.unit.id]
        now = time.time()
        began = one.began if one.began is not None else now
        problem = self.store.end(one.unit.id, ended)
        self.keep(
            Record(
                unit=one.unit.id,
                digest=self.digest(one.unit),
                exit_code=ended.code,
                began=round(began, 3),
                seconds=round(now - began, 3),
                node=one.node,
                lost=one.lost,
                problem=one_line(problem),
            )
        )

    def lose(self, one: Attempt, reason: str) -> None:
        """Put the events of a lost attempt aside, and retry the unit if a retry is left."""
        del self.out[one.unit.id]
        self.store.put_aside(one.unit.id)
        one.lost.append(reason)
        if len(one.lost) <= self.retries:
            self.tell(f"{one.unit.id}: lost ({reason}); retrying (retry {len(one.lost)} of {self.retries})")
            self.waiting.append(one)
            return
        said = f"lost {many(len(one.lost), 'time')}; the last reason: {reason}"
        self.keep(failed_record(one.unit.id, self.digest(one.unit), said, one.lost))

    def keep(self, record: Record) -> None:
        """Store and report the record of a unit."""
        self.store.keep(record)
        self.done.append(record)
        self.tell(f"{record.unit}: {outcome_text(record)}")
        self.progress()

    def progress(self) -> None:
        """Report the progress of all units."""
        self.reported_at = time.monotonic()
        running = sum(one.began is not None for one in self.out.values())
        waiting = len(self.waiting) + len(self.out) - running
        left = self.left(running, waiting)
        about = f"; about {duration(left)} left" if left is not None else ""
        self.tell(f"{len(self.done)} done, {running} running, {waiting} waiting{about}")

    def left(self, running: int, waiting: int) -> float | None:
        """Return the estimated remaining seconds from finished units; None if there is no estimate."""
        took = [record.seconds for record in self.done if record.seconds]
        if not took or not running + waiting:
            return None
        each, now = sum(took) / len(took), time.time()
        begun = [max(0.0, each - (now - one.began)) for one in self.out.values() if one.began is not None]
        return (sum(begun) + waiting * each) / max(running, 1) or None


def outcome_text(record: Record) -> str:
    """Return the result of a unit as text."""
    after = f" after being lost {many(len(record.lost), 'time')}" if record.lost else ""
    said = f"ERROR: {record.problem}" if record.problem else f"exit code {record.exit_code}"
    return f"{said}, {duration(record.seconds)}{after}"
