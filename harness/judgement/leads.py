"""Which of the evidence that a trial lacks its next example is drawn for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

# Examples that are drawn for one counter and do not raise it. Then no workload here does: others are worth more.
MOST_TRIES = 8


class Leads:
    """The choices of one trial. `evidence`: its counters so far."""

    def __init__(self, evidence: Mapping[str, float]) -> None:
        self.evidence = evidence
        self.tries: Counter[str] = Counter()
        self.chosen: dict[tuple[tuple[str, ...], int], str] = {}

    def choose(self, among: tuple[str, ...], number: int) -> str:
        """Return the counter that is missing and was tried least; "" if none is, or each was tried often enough.

        The choice for a number is kept: hypothesis draws a failing example again, when its evidence is there.
        """
        key = among, number
        if key not in self.chosen:
            name = min(self.hopeful(among), key=lambda one: self.tries[one], default="")
            self.tries.update([name] if name else [])
            self.chosen[key] = name
        return self.chosen[key]

    def is_trying(self, names: Collection[str]) -> bool:
        """Return whether examples are drawn for any of these counters, and may still raise it."""
        return any(self.tries[name] for name in self.hopeful(names))

    def hopeful(self, names: Collection[str]) -> list[str]:
        """Return the counters that are missing, and have not been tried often enough."""
        return [name for name in names if not self.evidence.get(name) and self.tries[name] < MOST_TRIES]
