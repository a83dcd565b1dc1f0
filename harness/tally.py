"""What a run has come to so far, and the few lines that say so while it goes on.

Plain counting: it knows neither a terminal nor the clock but by what it is told.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from harness.facts import Evidence
from reports.schema import Verdict

# What shows that the risky paths are being taken, as the panel names it.
_TOLD = {
    Evidence.HIT_TOKENS: "hit tokens",
    Evidence.EVICTED: "evicted tokens",
    Evidence.PREEMPTIONS: "preemptions",
}


class Tally:
    """Counts of the requirement that is being tested, and verdicts of those that are through."""

    def __init__(self) -> None:
        self.now = ""
        self.of = 0
        self.examples = self.failing = 0
        self.seen: Counter[str] = Counter()
        self.verdicts: Counter[Verdict] = Counter()

    def phase(self, words: str) -> None:
        """Something else than drawing examples goes on."""
        self.now = f"{words} ..."

    def trial(self, fields: dict[str, Any]) -> None:
        """A requirement's test begins."""
        self.now = f"{fields['requirement']} {fields['title']} [{fields['cell']}]"
        self.of = max(self.of, fields.get("of", 0))
        self.examples = self.failing = 0
        self.seen.clear()

    def example(self, fields: dict[str, Any]) -> None:
        """An example ended."""
        self.examples += 1
        self.failing += bool(fields.get("findings"))
        self.seen.update({name: fields.get("evidence", {}).get(name, 0) for name in _TOLD})

    def verdict(self, fields: dict[str, Any]) -> None:
        """A requirement's test is through."""
        self.verdicts[fields["verdict"]] += 1
        self.of = max(self.of, fields["of"])

    @property
    def done(self) -> int:
        """How many tests are through."""
        return self.verdicts.total()

    def seconds_left(self, elapsed: float) -> float:
        """An estimate from the time so far; 0 where nothing is known or nothing is left."""
        return elapsed / self.done * max(0, self.of - self.done) if self.done else 0.0

    def lines(self, elapsed: float) -> list[str]:
        """The panel: what goes on, what it has shown, how far the run is."""
        left = in_words(self.seconds_left(elapsed))
        bad = [f"{self.verdicts[verdict]} {verdict.value}" for verdict in reversed(Verdict) if self.verdicts[verdict]]
        through = [f"{self.done} of {self.of} through"] if self.of else []
        run = " · ".join([*through, *bad, f"{clock(elapsed)} so far", *([f"about {left} left"] if left else [])])
        return [self.now, *([self.shown()] if self.examples else []), run]

    def shown(self) -> str:
        """What the requirement that is being tested has to show."""
        many = "1 example" if self.examples == 1 else f"{self.examples:,} examples"
        failing = [f"{self.failing} failing"] if self.failing else []
        return " · ".join([many, *(f"{self.seen[name]:,.0f} {words}" for name, words in _TOLD.items()), *failing])


def in_words(seconds: float) -> str:
    """A time that is guessed; empty where it is nothing."""
    return f"{seconds / 60:.0f} min" if seconds > 90 else f"{seconds:.0f} s" if seconds > 1 else ""


def clock(seconds: float) -> str:
    """A time that is measured: minutes and seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"
