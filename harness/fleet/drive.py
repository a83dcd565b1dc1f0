"""Drives units to their end: sends them out, writes down what comes back, and tries again what a lost node took along.

A try that ended is never repeated, whatever its verdict; a try that was lost counts for nothing. So each unit is in the
totals once or is said to be missing.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from harness.fleet.cluster import Broken, Lost
from harness.fleet.matrix import Machine
from harness.fleet.remote import Began, Ended, Lines, Message, Order
from harness.fleet.store import Record, Store, unreached
from harness.fleet.units import Unit
from reports.text import duration, many, one_line

LOOK_SECONDS = 1.0
TELL_SECONDS = 30.0


class Nodes(Protocol):
    """Whatever does the runs: Ray, or a test's own."""

    def start(self, order: Order, machine: Machine) -> None:
        """Have a run done as soon as there is room."""

    def messages(self, seconds: float) -> Sequence[tuple[str, Message | Lost | Broken]]:
        """What has come in, by unit."""


@dataclass(slots=True)
class Try:
    """A unit under way. `began`: when a node took it."""

    unit: Unit
    lost: list[str] = field(default_factory=list)
    began: float | None = None
    node: str = ""


class Driver:
    """One start of a fleet."""

    def __init__(
        self,
        *,
        nodes: Nodes,
        store: Store,
        order: Callable[[Unit], Order],
        digest: Callable[[Unit], str],
        tell: Callable[[str], None],
        workers: int | None,
        retries: int,
    ) -> None:
        """`workers`: at most so many runs at a time, beside what the machines have room for."""
        self.nodes, self.store, self.order, self.digest, self.tell = nodes, store, order, digest, tell
        self.workers, self.retries = workers, retries
        self.waiting: deque[Try] = deque()
        self.out: dict[str, Try] = {}  # by unit
        self.done: list[Record] = []
        self.told_at = time.monotonic()

    def drive(self, units: Sequence[Unit]) -> list[Record]:
        """All of them; returns what became of each."""
        self.waiting.extend(Try(unit) for unit in units)
        while self.waiting or self.out:
            while self.waiting and (self.workers is None or len(self.out) < self.workers):
                self.send(self.waiting.popleft())
            for unit, message in self.nodes.messages(LOOK_SECONDS):
                if unit in self.out:  # how a task ended, or was lost, says nothing of a run that had told its end
                    self.take(self.out[unit], message)
            if time.monotonic() - self.told_at > TELL_SECONDS:
                self.progress()
        return self.done

    def send(self, one: Try) -> None:
        """Out with it."""
        one.began, one.node = None, ""
        self.out[one.unit.id] = one
        self.store.begin(one.unit.id)
        self.nodes.start(self.order(one.unit), one.unit.machine)

    def take(self, one: Try, message: Message | Lost | Broken) -> None:
        """What a run, or the want of one, has to say."""
        match message:
            case Began(node):
                one.began, one.node = time.time(), node
                self.tell(f"{one.unit.id}: began on node {node}")
            case Lines(lines):
                self.store.add(one.unit.id, lines)
            case Ended():
                self.end(one, message)
            case Lost(reason):
                self.lose(one, one_line(reason, 200))
            case Broken(reason):
                del self.out[one.unit.id]
                self.store.put_aside(one.unit.id)
                self.keep(unreached(one.unit.id, self.digest(one.unit), one_line(reason), one.lost))

    def end(self, one: Try, ended: Ended) -> None:
        """A run has ended, with a verdict or without: that is its end."""
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

    def lose(self, one: Try, reason: str) -> None:
        """Nobody's verdict: what it told is put aside, and it waits for another try while there is one."""
        del self.out[one.unit.id]
        self.store.put_aside(one.unit.id)
        one.lost.append(reason)
        if len(one.lost) <= self.retries:
            self.tell(f"{one.unit.id}: lost ({reason}); again (retry {len(one.lost)} of {self.retries})")
            self.waiting.append(one)
            return
        said = f"lost {many(len(one.lost), 'time')}, the last time with: {reason}"
        self.keep(unreached(one.unit.id, self.digest(one.unit), said, one.lost))

    def keep(self, record: Record) -> None:
        """Write down what became of a unit, and say it."""
        self.store.keep(record)
        self.done.append(record)
        self.tell(f"{record.unit}: {outcome(record)}")
        self.progress()

    def progress(self) -> None:
        """How far all of it is."""
        self.told_at = time.monotonic()
        running = sum(one.began is not None for one in self.out.values())
        waiting = len(self.waiting) + len(self.out) - running
        left = self.left(running, waiting)
        about = f"; about {duration(left)} left" if left is not None else ""
        self.tell(f"{len(self.done)} done, {running} running, {waiting} waiting{about}")

    def left(self, running: int, waiting: int) -> float | None:
        """Seconds to go, as what is done suggests; None where nothing is known, or what runs takes longer than that."""
        took = [record.seconds for record in self.done if record.seconds]
        if not took or not running + waiting:
            return None
        each, now = sum(took) / len(took), time.time()
        begun = [max(0.0, each - (now - one.began)) for one in self.out.values() if one.began is not None]
        return (sum(begun) + waiting * each) / max(running, 1) or None


def outcome(record: Record) -> str:
    """What became of a unit, in words."""
    after = f" after being lost {many(len(record.lost), 'time')}" if record.lost else ""
    said = f"ERROR: {record.problem}" if record.problem else f"exit code {record.exit_code}"
    return f"{said}, {duration(record.seconds)}{after}"
