"""How far pooled answers are apart. Pure.

Float32 rounding changes a value by about 1e-6; a wrong block changes many by a hundredth.
"""

from __future__ import annotations

import math

import msgspec

from coldproof.adapters.protocol.pooling import Rows
from coldproof.harness.history.records import Outcome
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.oracle import Answers, question

# Without a calibration, and the least that a calibration sets: a hundred times what the order of additions changes.
ROUNDING = 1e-4


class Deviation(msgspec.Struct, frozen=True):
    """How far a pooled answer is from a cold one: in the vector that differs most.

    `row`: the number of that vector. `largest`: the largest difference of a value. `cosine`: of the angle between the
    two vectors; None if one of them is zero.
    """

    row: int
    largest: float
    cosine: float | None

    def __str__(self) -> str:
        angle = "" if self.cosine is None else f", cosine {self.cosine:.6f}"
        return f"a value differs by {self.largest:.3g}{angle}"


def tolerance(rule: Rule) -> float:
    """Return by how much a value may differ from the cold one."""
    return ROUNDING if rule.pooled is None else rule.pooled


def same_vectors(left: Rows, right: Rows, rule: Rule) -> bool:
    """Return whether two pooled answers are equal up to the tolerance."""
    return is_alike(left, right) and deviation(left, right).largest <= tolerance(rule)


def is_alike(left: Rows, right: Rows) -> bool:
    """Return whether two answers have as many vectors with as many values."""
    return [len(row) for row in left] == [len(row) for row in right]


def deviation(left: Rows, right: Rows) -> Deviation:
    """Return how far two answers of the same form are apart. What is not a number is infinitely far from anything."""
    apart = [furthest(one, other) for one, other in zip(left, right, strict=True)]
    row = max(range(len(apart)), key=apart.__getitem__)
    return Deviation(row, apart[row], cosine(left[row], right[row]))


def furthest(left: tuple[float, ...], right: tuple[float, ...]) -> float:
    """Return the largest difference of a value between two vectors."""
    return max((distance(a, b) for a, b in zip(left, right, strict=True)), default=0.0)


def distance(left: float, right: float) -> float:
    """Return the difference of two values; infinite if one is not finite."""
    return abs(left - right) if math.isfinite(left) and math.isfinite(right) else math.inf


def cosine(left: tuple[float, ...], right: tuple[float, ...]) -> float | None:
    """Return the cosine of the angle between two vectors; None if there is no angle."""
    lengths = math.hypot(*left) * math.hypot(*right)
    if not lengths or not math.isfinite(lengths):
        return None
    return sum(a * b for a, b in zip(left, right, strict=True)) / lengths


def nearest(outcome: Outcome, answers: Answers) -> Rows:
    """Return the allowed cold answer that is nearest to a pooled answer."""
    allowed = [answers[question(outcome, identity)].pooled or () for identity in outcome.identities]
    mine = outcome.pooled or ()
    return min(allowed, key=lambda cold: deviation(mine, cold).largest if mine and is_alike(mine, cold) else math.inf)
