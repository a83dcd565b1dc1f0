"""The evidence of a history by itself, as far as a test is about one counter."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.history.records import History
from coldproof.harness.judgement import collect
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.judgement.finding import EXACT
from coldproof.harness.judgement.oracle import Answers
from coldproof.harness.judgement.registry import Example

Shown = tuple[Evidence, History, list[History]]  # the simplest history that a counter counts, and similar ones


def evidence(history: History, answers: Answers) -> dict[str, float]:
    """Return all counters of a history on an engine that nobody else uses, where answers are exact."""
    return collect.evidence(Example(history=history, answers=answers, rule=EXACT, exclusive=True))


def miscounted(rows: Iterable[Shown]) -> list[str]:
    """Return each counter that does not count its history, or that counts a similar one, which is named by its place.

    A requirement that conforms because of a similar history would have shown nothing.
    """
    found = []
    for what, shows, others in rows:
        if not evidence(shows, {})[what]:
            found.append(f"{what.name} is not counted")
        found += [f"{what.name} is counted in history {i}" for i, one in enumerate(others) if evidence(one, {})[what]]
    return found
