"""Counts the events of a run, and formats the lines of the live panel.

It uses neither a terminal nor the clock: the elapsed time is an argument.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.verdict import Verdict

# Evidence that the panel shows: it means that the risky code paths are exercised.
SHOWN_EVIDENCE = {
    ReportedEvidence.HIT_TOKENS: "hit tokens",
    ReportedEvidence.EVICTED: "evicted tokens",
    ReportedEvidence.PREEMPTIONS: "preemptions",
}


class RunProgress:
    """Counts for the current trial, and the verdicts of finished trials."""

    def __init__(self) -> None:
        self.now = ""
        self.of = 0
        self.examples = self.failing = 0
        self.seen: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()
        self.left: float | None = None  # seconds that the budget expects, after the latest verdict
        self.requests = 0  # of the whole run

    def on_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Count one event."""
        match kind:
            case "phase":
                self.phase(fields)
            case "trial":
                self.trial(fields)
            case "example":
                self.example(fields)
            case "verdict":
                self.verdict(fields)

    def phase(self, fields: dict[str, Any]) -> None:
        """Record a phase other than drawing examples, with its progress if that is counted."""
        if "of" not in fields:
            self.now = f"{fields['words']} ..."
            return
        left = estimate_text(fields["seconds_left"])
        counted = f"{fields['words']}: {fields['done']} of {fields['of']} cold answers"
        self.now = f"{counted}, about {left} left" if left else counted

    def trial(self, fields: dict[str, Any]) -> None:
        """Record the start of a trial."""
        self.now = f"{fields['requirement']} {fields['title']} [{fields['cell']}]"
        self.of = max(self.of, fields.get("of", 0))
        self.examples = self.failing = 0
        self.seen.clear()

    def example(self, fields: dict[str, Any]) -> None:
        """Record an example."""
        self.examples += 1
        self.failing += bool(fields.get("findings"))
        self.seen.update({name: fields.get("evidence", {}).get(name, 0) for name in SHOWN_EVIDENCE})

    def verdict(self, fields: dict[str, Any]) -> None:
        """Record the verdict of a trial."""
        self.verdicts[Verdict(fields["verdict"])] += 1
        self.left = fields.get("left") if fields.get("left") is not None else self.left
        self.requests += fields.get("requests", 0)
        self.of = max(self.of, fields["of"])

    @property
    def done(self) -> int:
        """Return the number of finished trials."""
        return self.verdicts.total()

    def seconds_left(self, elapsed: float) -> float:
        """Return the budget's estimate, else one from the elapsed seconds; 0 if nothing is known or nothing is left."""
        if self.left is not None and self.done < self.of:
            return self.left
        return elapsed / self.done * max(0, self.of - self.done) if self.done else 0.0

    def lines(self, elapsed: float) -> list[str]:
        """Return the lines of the panel: current phase or trial, its counts, and progress of the run."""
        left = estimate_text(self.seconds_left(elapsed))
        bad = [f"{self.verdicts[verdict]} {verdict.value}" for verdict in reversed(Verdict) if self.verdicts[verdict]]
        done = [f"{self.done} of {self.of} done"] if self.of else []
        run = " · ".join([*done, *bad, f"{elapsed_text(elapsed)} elapsed", *([f"about {left} left"] if left else [])])
        return [self.now, *([self.shown()] if self.examples else []), run]

    def line(self, elapsed: float) -> str:
        """Return the progress of the run as one line."""
        done = f"{self.done} of {self.of} done" if self.of else ""
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
