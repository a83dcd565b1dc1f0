"""Collects the evidence that a requirement was exercised, from every function in the folder `evidence` and in features.

A requirement names the evidence that it needs. If one of these counters is zero over all examples, the verdict is
NOT EXERCISED.
"""

from __future__ import annotations

from collections.abc import Collection

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.judgement.counters import COUNTINGS, Counting, Evidence, Trait
from coldproof.harness.judgement.registry import Example

FUNCTIONS = COUNTINGS.load()
NAMES = [frozenset(one.counters) for one in FUNCTIONS]
# All counters by their texts.
COUNTERS: dict[str, Evidence] = {one.value: one for counting in FUNCTIONS for one in counting.counters}
# By a feature that an engine may have on: the counter that is not zero if it has acted.
ACTING: dict[Capability, Evidence] = {one.feature: one for one in COUNTERS.values() if one.feature is not None}


def evidence(example: Example) -> dict[str, float]:
    """Return all counters of one example. Raises TypeError for a function that does not return each of its counters:
    a requirement that needs the missing one would never be exercised.
    """
    facts: dict[str, float] = {}
    for counting, names in zip(FUNCTIONS, NAMES, strict=True):
        found = counting.result(example)
        if found.keys() != names:
            raise TypeError(wrong_counters(counting, found))
        facts |= found
    return facts if example.exclusive else facts | dict.fromkeys(with_trait(Trait.EXCLUSIVE, COUNTERS), 0.0)


def wrong_counters(counting: Counting, found: Collection[str]) -> str:
    """Return what is wrong with the counters that a function returned, in words for its author."""
    name = f"{counting.function.__module__}.{counting.function.__qualname__}"
    missing, others = set(counting.counters) - set(found), set(found) - set(counting.counters)
    parts = [f"does not return {', '.join(map(repr, sorted(map(str, missing))))}"] if missing else []
    parts += [f"returns {', '.join(map(repr, sorted(map(str, others))))} of another class"] if others else []
    return f"{name} {' and '.join(parts)}: it returns a value for each member of {counting.counters.__name__}"


def with_trait(trait: Trait, names: Collection[str]) -> list[str]:
    """Return those of these counters that have a trait. Raises KeyError for the name of no counter."""
    return [name for name in names if trait in COUNTERS[name].traits]
