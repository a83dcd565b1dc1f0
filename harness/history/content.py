"""What prompts carry without the model seeing it, whatever their content is."""

from __future__ import annotations

import math

from coldproof.harness.history.embedding_rows import same_rows_until, sends_rows
from coldproof.harness.history.images import same_names_until
from coldproof.harness.history.records import Outcome


def carry_the_same_until(other: Outcome, outcome: Outcome) -> float:
    """Return the first position at which two prompts carry different things that the model does not see.

    No reuse is promised from there on.
    """
    if not outcome.hidden and not other.hidden:
        return math.inf
    if sends_rows(outcome) or sends_rows(other):
        return same_rows_until(other, outcome)
    return same_names_until(other, outcome)
