"""Collects the evidence that a requirement was exercised, from every function in the folder `evidence` and in features.

A requirement names the evidence that it needs. If one of these counters is zero over all examples, the verdict is
NOT EXERCISED.
"""

from __future__ import annotations

from collections.abc import Collection

from coldproof.harness.judgement.counters import COUNTINGS, Evidence, Trait
from coldproof.harness.judgement.registry import Example

FUNCTIONS = COUNTINGS.load()
# All counters by their texts.
COUNTERS: dict[str, Evidence] = {one.value: one for counting in FUNCTIONS for one in counting.counters}


def evidence(example: Example) -> dict[str, float]:
    """Return all counters of one example."""
    facts: dict[str, float] = {}
    for counting in FUNCTIONS:
        facts |= counting.result(example)
    return facts if example.exclusive else facts | dict.fromkeys(with_trait(Trait.EXCLUSIVE, COUNTERS), 0.0)


def with_trait(trait: Trait, names: Collection[str]) -> list[str]:
    """Return those of these counters that have a trait. Raises KeyError for the name of no counter."""
    return [name for name in names if trait in COUNTERS[name].traits]
