"""Which features of the engine a run has shown at once, two and two."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from coldproof.harness.schema.results import FeaturePairs
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.text import number

Event = dict[str, Any]
JOINT = "+"
DECIDED = (Verdict.CONFORMS, Verdict.VIOLATED, Verdict.KNOWN_ISSUE)


def feature_pairs(events: list[Event]) -> list[FeaturePairs]:
    """Return the pairs of each two dimensions that the run announced. A decided verdict counts for what its cell had on
    and, where evidence tells that a feature acted, for what its examples have shown.
    """
    announced = [event for event in events if event["event"] == "pairs"]
    decided = [e for e in events if e["event"] == "verdict" and e["verdict"] in DECIDED and e["examples"]]
    had: set[str] = set()
    for event in announced:
        for verdict in decided:
            on = event["cells"].get(verdict["cell"], ())
            idle = {value for value, shown_by in event["acts"].items() if not verdict["evidence"].get(shown_by)}
            had.update(map(JOINT.join, itertools.combinations([value for value in on if value not in idle], 2)))
    possible: dict[str, list[str]] = announced[0]["possible"] if announced else {}
    return [
        FeaturePairs(dimensions=names, possible=len(pairs), missing=[pair for pair in pairs if pair not in had])
        for names, pairs in possible.items()
    ]


def pairs_summary(pairs: Sequence[FeaturePairs]) -> str:
    """Return the figures of a run in one line; "" for a run without pairs."""
    if not pairs:
        return ""
    possible, missing = sum(one.possible for one in pairs), sum(len(one.missing) for one in pairs)
    return f"pairs of features at once: {number(possible - missing)} of {number(possible)}"
