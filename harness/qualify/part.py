"""One run's folder in a bundle, read strictly: its events, and its examples judged again as they are read."""

from __future__ import annotations

import datetime
import json
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from harness.known_issues import Waivers, read_known_issues
from harness.qualify.frozen import FrozenList, Place
from harness.qualify.record import KNOWN_ISSUES, Qualification
from harness.qualify.rejudge import Seen, Stored, judged_again
from reports.assemble import EXAMPLE, Event
from reports.schema import Case

EVENTS = "events.ndjson"
SHARDS = "shards"  # of a bundle that was merged, one folder each


class Part:
    """What a run left, and what came out when its examples were judged again.

    `problems`: lines that cannot be read, or that are of no test of the list.
    """

    def __init__(self, folder: Path, frozen: FrozenList, *, judge: bool = True) -> None:
        """Raises OSError. Without `judge` examples are passed over."""
        self.folder, self.frozen, self.judge = folder, frozen, judge
        self.events: list[Event] = []  # all but examples
        self.seen: dict[Place, Seen] = defaultdict(Seen)
        self.problems: list[str] = []
        with (folder / EVENTS).open("rb") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    self.read(line)
                except (ValueError, LookupError) as problem:  # of JSON and of msgspec
                    self.problems.append(f"line {number} of the events cannot be judged again: {problem}")

    def read(self, line: bytes) -> None:
        """One line."""
        if not line.endswith(b"\n"):
            raise ValueError("it is cut off")
        if not line.startswith(EXAMPLE):
            event = json.loads(line)
            if not isinstance(event, dict) or not isinstance(event.get("event"), str):
                raise ValueError("it is no event")
            self.events.append(event)
            return
        if not self.judge:
            return
        stored = msgspec.json.decode(line, type=Stored)
        test = self.frozen.test(stored.place)
        if test is None:
            raise LookupError(f"{stored.place} is not in the list of requirements")
        self.seen[stored.place].add(stored, judged_again(stored, test))

    def last(self, kind: str) -> Event:
        """The newest event of a kind; an empty one where there is none."""
        return next((event for event in reversed(self.events) if event["event"] == kind), {})

    def all(self, kind: str) -> Iterator[Event]:
        """All events of a kind."""
        return (event for event in self.events if event["event"] == kind)

    @property
    def started(self) -> Event:
        """The first event of a run."""
        return self.last("run_started")

    @property
    def shard(self) -> str:
        """As "2/3"; empty for a whole run."""
        return str(self.started.get("shard", ""))

    @property
    def name(self) -> str:
        """For a sentence about it."""
        return f"shard {self.shard}" if self.shard else "the run"

    @property
    def qualification(self) -> Qualification | None:
        """What the run wrote down of itself; None where it was none of the release form, or wrote something else."""
        try:
            return msgspec.convert(self.last("qualification")["qualification"], Qualification)
        except (LookupError, msgspec.MsgspecError):
            return None

    def announced(self) -> Counter[Place]:
        """How often each place was announced."""
        return Counter(Place(e["id"], e["test"], e["cell"]) for e in self.all("requirement"))

    def verdicts(self) -> Iterator[tuple[Place, Event]]:
        """Every verdict with its place."""
        return ((Place(e["requirement"], e["test"], e["cell"]), e) for e in self.all("verdict"))

    def cases(self) -> dict[str, Case]:
        """The counterexamples by id. Raises msgspec.MsgspecError."""
        return {case.id: case for e in self.all("case") for case in [msgspec.convert(e["case"], Case)]}

    def engines(self) -> dict[str, list[Event]]:
        """What each cell's engines said of themselves."""
        found: dict[str, list[Event]] = defaultdict(list)
        for event in self.all("engine"):
            found[event["cell"]].append(event)
        return found

    def engine(self) -> dict[str, Any]:
        """The engine as the results show it; empty where none came up."""
        return dict(self.last("engine").get("engine", {}))

    def waivers(self, on: Event) -> Waivers:
        """The known issues of the bundle, on the day of an event. Raises UsageError where the file cannot be used."""
        path = self.folder / KNOWN_ISSUES
        return Waivers(
            read_known_issues(path if path.is_file() else None),
            version=self.engine().get("version"),
            today=datetime.datetime.fromtimestamp(on["at"], datetime.UTC).date(),
            worker=self.engine().get("worker", "model"),
        )


def part_folders(bundle: Path) -> list[Path]:
    """The folders of a bundle's runs: its own, or its shards'."""
    shards = bundle / SHARDS
    if (bundle / EVENTS).is_file() or not shards.is_dir():
        return [bundle]
    return sorted(
        (folder for folder in shards.iterdir() if folder.is_dir()), key=lambda path: (len(path.name), path.name)
    )
