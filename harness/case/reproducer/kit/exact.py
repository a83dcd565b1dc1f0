"""Compares answers of an engine whose correct answers are all equal."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.script.given import ABORTS, ENDS, POOLED, ROUNDING, SCORES, SEVERAL
from coldproof.harness.case.reproducer.kit.reply import Reply

SCORE_NATS = 0.02  # tolerance for the order of additions; a wrong block changes scores by tenths


def differences(mine: Reply, cold: Reply, sent: dict[str, Any]) -> list[str]:
    """Return which parts of an answer differ from the cold answer. An aborted answer is compared as far as it goes."""
    if ABORTS and "abort" in sent:
        return [] if mine.ids == cold.ids[: len(mine.ids)] else ["tokens"]
    found = [] if mine.ids == cold.ids else ["tokens"]
    if SEVERAL:
        found += [] if mine.others == cold.others else ["other answers"]
    if ENDS:
        found += [] if mine.end == cold.end else ["finish reason"]
    if SCORES:
        alike = near(mine.scores, cold.scores) and near(mine.prompt_scores, cold.prompt_scores)
        found += [] if alike else ["scores"]
    if POOLED:
        found += [] if largest(mine.vectors, cold.vectors) <= ROUNDING else ["vectors"]
    return found


def near(mine: list[Any], cold: list[Any], allowed: float = SCORE_NATS) -> bool:
    """Return whether scores are missing in the same places, and the others differ by no more than `allowed` nats."""
    missing = [score is None for score in mine] == [score is None for score in cold]
    return missing and all(abs(a - b) <= allowed for a, b in zip(mine, cold, strict=True) if a is not None)


def largest(mine: list[list[float]], cold: list[list[float]]) -> float:
    """Return the largest difference of a value; infinite if there are not as many vectors and values."""
    if [len(vector) for vector in mine] != [len(vector) for vector in cold]:
        return float("inf")
    values = (abs(a - b) for one, other in zip(mine, cold, strict=True) for a, b in zip(one, other, strict=True))
    return max(values, default=0.0)
