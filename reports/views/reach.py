"""Reached states as figures: of one field, and by requirement."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from coldproof.harness.schema.results import Results

OFTEN = 10  # examples: fewer may be luck


@dataclass(frozen=True, slots=True)
class RequirementReach:
    """How many states the examples of one requirement reached, and how many of them no other requirement reached."""

    id: str
    examples: int
    reached: int
    alone: int


def level(count: int | None) -> str:
    """Return how often a cell was reached, in a word: the class of its field."""
    if count is None:
        return "absent"
    return "never" if count == 0 else "once" if count == 1 else "few" if count < OFTEN else "often"


def by_requirement(results: Results) -> list[RequirementReach]:
    """Return the figures of each requirement that has examples, those that reached most first."""
    reaching = Counter(cell for requirement in results.requirements for cell in requirement.reach)
    rows = [
        RequirementReach(one.id, one.examples, len(one.reach), sum(reaching[cell] == 1 for cell in one.reach))
        for one in results.requirements
        if one.reach
    ]
    return sorted(rows, key=lambda row: (-row.reached, row.id))
