"""Reads the folder of one run in a bundle strictly. Each stored example is re-evaluated while it is read.

That needs the current checkers, but not the run's engine. Recorded findings, counts and evidence are not trusted: they
must be the same as the recomputed ones.
"""

from __future__ import annotations

import datetime
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.shape import EngineShape
from coldproof.harness.case.known_issues import Waivers, read_known_issues
from coldproof.harness.history.records import History
from coldproof.harness.judgement.finding import Finding, Rule
from coldproof.harness.judgement.judge import Judgement, judge_again
from coldproof.harness.judgement.oracle import Answer, Question
from coldproof.harness.judgement.requirement import Absent, missing
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.judgement.weight_pairs import PairCount, pair_counts
from coldproof.harness.release.bundle.check_histories import SeenHistories
from coldproof.harness.release.requirements.frozen import FrozenList, FrozenTest, Place
from coldproof.harness.release.run.record import KNOWN_ISSUES, Qualification
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import PlantedRepair
from coldproof.harness.schema.stored_files import MALFORMED, decode, decode_object, read_lines
from coldproof.reports.assemble.assemble import EXAMPLE, Event, check_stamp
from coldproof.reports.format.text import one_line

EVENTS = "events.ndjson"
SHARDS = "shards"  # of a merged bundle; one folder for each shard
MOST_PROBLEMS = 20  # that are kept of one file: a file of another kind has one in each line


class Stored(msgspec.Struct, frozen=True, kw_only=True):
    """One stored example: the history, the cold answers, the comparison rule, and the recorded results."""

    requirement: str
    cell: str
    test: str
    rule: Rule
    exclusive: bool
    finding: str = ""  # of which it is a replay
    history: History
    answers: tuple[tuple[Question, Answer], ...]
    evidence: dict[str, float]
    findings: tuple[Finding, ...]
    noise: tuple[Finding, ...]
    permitted: tuple[Finding, ...] = ()
    weight_pairs: list[PairCount] = []  # empty for the examples of minimising too

    @property
    def place(self) -> Place:
        """The place that the example was drawn for."""
        return Place(self.requirement, self.test, self.cell)


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """What all events have, and the place of those that belong to a test. `seconds`: how long a trial took.

    Trials name their requirement and cell only. Events of one process are in the order of its numbers.
    """

    event: str
    at: float
    process: str = ""
    number: int = -1
    requirement: str = ""
    test: str = ""
    cell: str = ""
    seconds: float = 0.0
    verdict: str = ""
    case: Any = None  # the name of a verdict's case, or a case
    stage: str = ""


class RejudgedTest(Trial):
    """The trial of one place, with the re-evaluated results of all its examples.

    `changed` counts the examples whose recorded results differ from the recomputed ones.
    """

    def __init__(self, test: FrozenTest, cell: str) -> None:
        super().__init__(test.declared, cell, test.statement, test.test)
        self.changed = 0
        self.rules: set[Rule] = set()
        self.first_difference = ""

    def add_again(self, stored: Stored, recomputed: Judgement) -> None:
        """Add an example and its recomputed judgement, as a run does."""
        self.add(recomputed)
        self.rules.add(stored.rule)
        if text := difference(stored, recomputed):
            self.changed += 1
            self.first_difference = self.first_difference or text


def rejudge(stored: Stored, test: FrozenTest) -> Judgement:
    """Judge an example with the current checkers, and return the findings that its test is about."""
    judgement = judge_again(stored.history, dict(stored.answers), stored.rule, exclusive=stored.exclusive)
    return judgement.limited(test.declared)


def difference(stored: Stored, recomputed: Judgement) -> str:
    """Return the first difference between recorded and recomputed results; "" if there is none."""
    if recomputed.findings != stored.findings:
        return f"recorded {findings_summary(stored.findings)}, recomputed {findings_summary(recomputed.findings)}"
    if recomputed.noise != stored.noise:
        return f"recorded {len(stored.noise)} differences as noise, recomputed {len(recomputed.noise)}"
    if recomputed.permitted != stored.permitted:
        return f"recorded {len(stored.permitted)} differences as permitted, recomputed {len(recomputed.permitted)}"
    now = {str(name): float(value) for name, value in recomputed.evidence.items()}
    for name in sorted(now.keys() | stored.evidence.keys()):
        if now.get(name) != stored.evidence.get(name):
            return f"recorded '{name}' as {stored.evidence.get(name)}, recomputed {now.get(name)}"
    if stored.weight_pairs and stored.weight_pairs != pair_counts(recomputed.history, recomputed.findings):
        return "recorded other counts of requests after updates of the weights than recomputed"
    return ""


def described(problem: Exception) -> str:
    """Return what is wrong with a line of events. An error of our own code says little without its type."""
    told = isinstance(problem, ValueError) or type(problem) is LookupError
    return one_line(str(problem) if told else f"{type(problem).__name__}: {problem}", 300)


def findings_summary(findings: tuple[Finding, ...]) -> str:
    """Return the number of findings and the first one, or "no finding"."""
    return f"{len(findings)} findings ({findings[0].sentence[:160]})" if findings else "no finding"


class EngineFacts(msgspec.Struct, frozen=True):
    """What an engine reported of itself that `verify` uses."""

    version: str | None
    capabilities: dict[Capability, Support]


class OpenedEngine(msgspec.Struct, frozen=True, kw_only=True):
    """The engine of a cell, as the run recorded it: what it could be tested for, with the options of the run.

    `contents`, `versions`: how many adapter contents and other versions of the weights the run had for it. `digests`:
    of the adapter contents, by their symbolic names.
    """

    engine: EngineFacts
    contents: int
    versions: int
    digests: dict[str, str]
    shape: EngineShape

    def lacks(self, needs: tuple[Capability, ...]) -> list[Absent]:
        """Return why a requirement with these needs could not be tested on it; empty if it could."""
        return missing(self.engine.capabilities, needs, contents=self.contents, versions=self.versions)


class Part:
    """One run of a bundle (a shard or a whole run): its events, and the re-evaluated results of its examples.

    `problems` has a message for each line that cannot be read or that belongs to no test of the frozen list.
    """

    def __init__(self, folder: Path, frozen: FrozenList, *, judge: bool = True) -> None:
        """Read the events. Examples are skipped if `judge` is false. Raises OSError."""
        self.folder, self.frozen, self.judge = folder, frozen, judge
        self.events: list[Event] = []  # without examples
        self.lines: list[Line] = []
        self.rejudged: dict[Place, RejudgedTest] = {}
        self.histories = SeenHistories()
        self.problems: list[str] = []
        for number, line in enumerate(read_lines(folder / EVENTS), start=1):
            try:
                self.read(line)
            except MALFORMED as problem:
                if len(self.problems) < MOST_PROBLEMS:
                    self.problems.append(f"line {number} of {EVENTS} cannot be re-evaluated: {described(problem)}")

    def read(self, line: bytes) -> None:
        """Read one line. Raises one of MALFORMED for a line that no run writes."""
        if not line.endswith(b"\n"):
            raise ValueError("the line is incomplete")
        self.lines.append(decode(line, Line))
        if not line.startswith(EXAMPLE):
            event = decode_object(line)
            check_stamp(event)
            self.events.append(event)
            return
        if not self.judge:
            return
        stored = decode(line, Stored)
        test = self.frozen.test(stored.place)
        if test is None:
            raise LookupError(f"{stored.place} is not in the list of requirements")
        recomputed = rejudge(stored, test)
        if stored.place not in self.rejudged:
            self.rejudged[stored.place] = RejudgedTest(test, stored.cell)
        self.rejudged[stored.place].add_again(stored, recomputed)
        self.histories.add(stored.place, stored.history, finding=stored.finding)

    def last(self, kind: str) -> Event:
        """Return the newest event of a kind; an empty one if there is none."""
        return next((event for event in reversed(self.events) if event["event"] == kind), {})

    def all(self, kind: str) -> Iterator[Event]:
        """Return all events of a kind."""
        return (event for event in self.events if event["event"] == kind)

    @property
    def started(self) -> Event:
        """The event that starts the run."""
        return self.last("run_started")

    @property
    def shard(self) -> str:
        """The shard, for example "2/3"; "" for a whole run."""
        return str(self.started.get("shard", ""))

    @property
    def name(self) -> str:
        """The name of this run in messages."""
        return f"shard {self.shard}" if self.shard else "the run"

    @property
    def qualification(self) -> Qualification | None:
        """The qualification record; None if the run has none or it cannot be read."""
        try:
            return msgspec.convert(self.last("qualification")["qualification"], Qualification)
        except (LookupError, msgspec.MsgspecError):
            return None

    def announced(self) -> Counter[Place]:
        """Return how often each place was announced."""
        return Counter(Place(e["id"], e["test"], e["cell"]) for e in self.all("requirement"))

    def verdicts(self) -> Iterator[tuple[Place, Event]]:
        """Return every verdict event with its place."""
        return ((Place(e["requirement"], e["test"], e["cell"]), e) for e in self.all("verdict"))

    def cases(self) -> dict[str, Case]:
        """Return the counterexamples by id. Raises msgspec.MsgspecError."""
        return {case.id: case for e in self.all("case") for case in [msgspec.convert(e["case"], Case)]}

    def engines(self) -> dict[str, list[OpenedEngine]]:
        """Return the engines of each cell, as they reported themselves. Raises msgspec.ValidationError."""
        found: dict[str, list[OpenedEngine]] = defaultdict(list)
        for event in self.all("engine"):
            found[event["cell"]].append(msgspec.convert(event, OpenedEngine))
        return found

    def engine(self) -> dict[str, Any]:
        """Return the engine's description as in the results; empty if no engine started."""
        return dict(self.last("engine").get("engine", {}))

    def waivers(self, on: Event) -> Waivers:
        """Return the bundle's known issues as of the day of an event. Raises UsageError if the file is invalid."""
        path = self.folder / KNOWN_ISSUES
        return Waivers(
            read_known_issues(path if path.is_file() else None),
            version=self.engine().get("version"),
            today=datetime.datetime.fromtimestamp(on["at"], datetime.UTC).date(),
            worker=self.engine().get("worker", "model"),
            repaired={name for one in self.repairs() for name in (one.name, *one.also)},
        )

    def repairs(self) -> list[PlantedRepair]:
        """Return the repairs that were planted into the engines. Raises msgspec.ValidationError."""
        return msgspec.convert(self.last("run_started").get("repairs", []), list[PlantedRepair])


def part_folders(bundle: Path) -> list[Path]:
    """Return the folders of a bundle's runs: the bundle itself, or one folder for each shard."""
    shards = bundle / SHARDS
    if (bundle / EVENTS).is_file() or not shards.is_dir():
        return [bundle]
    folders = (folder for folder in shards.iterdir() if folder.is_dir() and not folder.is_symlink())
    return sorted(folders, key=lambda path: (len(path.name), path.name))
