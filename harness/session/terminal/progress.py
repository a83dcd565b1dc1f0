"""Counts the events of a run, and formats the lines of the live panel.

It uses no terminal. The elapsed time is an argument; an estimate of the budget runs down by a clock until the next one.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.results import CellResult
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.requirement_results import cell_result, verdict_of_cells

# Evidence that the panel shows: it means that the risky code paths are exercised.
SHOWN_EVIDENCE = {
    ReportedEvidence.HIT_TOKENS: "hit tokens",
    ReportedEvidence.EVICTED: "evicted tokens",
    ReportedEvidence.PREEMPTIONS: "preemptions",
}


@dataclass(slots=True)
class RequirementProgress:
    """What the trials of a requirement showed so far. `announced`: how many it has; 0 where that is unknown."""

    announced: int = 0
    title: str = ""  # of its first test
    cells: list[CellResult] = field(default_factory=list)
    losses: int = 0

    @property
    def done(self) -> int:
        """Return how many of its trials have a verdict."""
        return len(self.cells)

    @property
    def examples(self) -> int:
        """Return the examples of all its trials."""
        return sum(cell.examples for cell in self.cells)

    @property
    def seconds(self) -> float:
        """Return the seconds of all its trials."""
        return sum(cell.seconds for cell in self.cells)

    def conclusion(self) -> tuple[Verdict, str]:
        """Return its verdict and the reason, as the report will have them: on few examples, nothing conforms."""
        return verdict_of_cells(self.cells)

    @property
    def losses_text(self) -> str:
        """Return how often its trials lost their engine; "" if never."""
        times = "once" if self.losses == 1 else f"{self.losses} times"
        return f"; the engine ended {times} and was started again" if self.losses else ""


class RunProgress:
    """Counts for the current trial, and the verdicts of finished trials."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.clock = clock
        self.now = ""
        self.of = 0
        self.examples = self.failing = 0
        self.seen: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.left: float | None = None  # seconds that the budget expects
        self.left_since = 0.0  # when that was
        self.requests = 0  # of the whole run
        self.waiting: set[tuple[str, str]] = set()  # cells and tests that go on later
        self.in_trial = False
        self.losses = 0  # engines lost since the latest verdict
        self.requirements: dict[str, RequirementProgress] = {}

    def on_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Count one event."""
        match kind:
            case "phase":
                self.phase(fields)
            case "requirement":
                one = self.of_requirement(fields["id"])
                one.announced += 1
                one.title = one.title or fields["title"]
            case "engine_lost":
                self.losses += 1
            case "trial":
                self.trial(fields)
            case "example":
                self.example(fields)
            case "waits":
                self.waits(fields)
            case "verdict":
                self.verdict(fields)

    def phase(self, fields: dict[str, Any]) -> None:
        """Record a phase other than drawing examples, with its progress if that is counted."""
        self.estimate(fields)
        if "of" not in fields:
            self.now = f"{fields['words']} ..."
            return
        left = estimate_text(fields["seconds_left"])
        counted = f"{fields['words']}: {fields['done']} of {fields['of']} cold answers"
        self.now = f"{counted}, about {left} left" if left else counted

    def trial(self, fields: dict[str, Any]) -> None:
        """Record the start of a trial."""
        self.in_trial = True
        self.now = f"{fields['requirement']} {fields['title']} [{fields['cell']}]"
        self.of = max(self.of, fields.get("of", 0))
        self.examples = self.failing = 0
        self.seen.clear()

    def example(self, fields: dict[str, Any]) -> None:
        """Record an example."""
        self.examples += 1
        self.failing += bool(fields.get("findings"))
        self.seen.update({name: fields.get("evidence", {}).get(name, 0) for name in SHOWN_EVIDENCE})

    def waits(self, fields: dict[str, Any]) -> None:
        """Record that a trial has ended the first visit of its cell, and goes on later."""
        self.waiting.add((fields["cell"], fields["test"]))
        self.estimate(fields)
        self.in_trial = False

    def verdict(self, fields: dict[str, Any]) -> None:
        """Record the verdict of a trial."""
        self.waiting.discard((fields.get("cell", ""), fields.get("test", "")))
        self.verdicts[Verdict(fields["verdict"])] += 1
        self.estimate(fields)
        self.requests += fields.get("requests", 0)
        self.of = max(self.of, fields["of"])
        self.in_trial = False
        one = self.of_requirement(fields["requirement"])
        one.cells.append(cell_result(fields, fields))
        one.losses += self.losses
        self.losses = 0

    def estimate(self, fields: dict[str, Any]) -> None:
        """Keep the seconds that are left by an event, if it has them. They pass until the next one."""
        if fields.get("left") is not None:
            self.left, self.left_since = fields["left"], self.clock()

    def of_requirement(self, name: str) -> RequirementProgress:
        """Return what is known of a requirement."""
        return self.requirements.setdefault(name, RequirementProgress())

    def requirement_done(self, fields: dict[str, Any]) -> RequirementProgress | None:
        """Return what the trials of a verdict's requirement showed if that was the last of them; otherwise None."""
        one = self.of_requirement(fields["requirement"])
        return one if one.done >= one.announced else None

    def requirements_done(self) -> tuple[int, int]:
        """Return how many requirements have all their verdicts, of how many; trials where that is unknown."""
        known = [one for one in self.requirements.values() if one.announced]
        if not known:
            return self.done, self.of
        return sum(one.done >= one.announced for one in known), len(known)

    @property
    def done(self) -> int:
        """Return the number of finished trials."""
        return self.verdicts.total()

    @property
    def done_text(self) -> str:
        """Return how many trials are done, and how many have drawn and go on later."""
        later = f", {len(self.waiting)} go on later" if self.waiting else ""
        return f"{self.done} of {self.of} done{later}"

    def seconds_left(self, elapsed: float) -> float:
        """Return what is left of the budget's estimate, else one from the elapsed seconds; 0 if nothing is known."""
        if self.left is not None and self.done < self.of:
            return max(0.0, self.left - (self.clock() - self.left_since))
        return elapsed / self.done * max(0, self.of - self.done) if self.done else 0.0

    def lines(self, elapsed: float) -> list[str]:
        """Return the lines of the panel: current phase or trial, its counts, and progress of the run."""
        left = estimate_text(self.seconds_left(elapsed))
        bad = [f"{self.verdicts[verdict]} {verdict.value}" for verdict in reversed(Verdict) if self.verdicts[verdict]]
        done = [self.done_text] if self.of else []
        run = " · ".join([*done, *bad, f"{elapsed_text(elapsed)} elapsed", *([f"about {left} left"] if left else [])])
        return [self.now, *([self.shown()] if self.examples else []), run]

    def line(self, elapsed: float) -> str:
        """Return the progress of the run as one line."""
        done = self.done_text if self.of else ""
        requests = f"{self.requests:,} requests" if self.requests else ""
        left = estimate_text(self.seconds_left(elapsed))
        about = f"about {left} left" if left else ""
        now = "" if self.of and self.done == self.of else self.now
        return " · ".join(filter(None, [done, requests, about, now]))

    def shown(self) -> str:
        """Return the counts of the current trial."""
        many = "1 example" if self.examples == 1 else f"{self.examples:,} examples"
        failing = [f"{self.failing} failing"] if self.failing else []
        return " · ".join(
            [many, *(f"{self.seen[name]:,.0f} {words}" for name, words in SHOWN_EVIDENCE.items()), *failing]
        )


def estimate_text(seconds: float) -> str:
    """Return an estimated duration in minutes or seconds; empty below one second."""
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s" if seconds > 1 else ""


def elapsed_text(seconds: float) -> str:
    """Return a measured duration as minutes:seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
