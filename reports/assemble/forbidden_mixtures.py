"""Takes back violations that a forbidden mixture of models may explain, whenever GROUND-1 was decided.

Where answers of a mixed batch differ without the cache too, a counterexample that may need such a batch is GROUND-1's,
and INCONCLUSIVE for any other requirement.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.text import listed

Event = dict[str, Any]


def without_forbidden_mixtures(events: list[Event]) -> list[Event]:
    """Return the events of a run, with the verdicts that follow from all that it found out about mixtures."""
    forbidden: dict[tuple[str, str], set[str]] = defaultdict(set)
    for event in events:
        if event["event"] == "mixture_excluded":
            forbidden[event.get("layer", ""), event["cell"]].add(event["mixture"])
    cases = {event["case"]["id"]: event["case"] for event in events if event["event"] == "case"}
    return [settled(event, cases, forbidden) if event["event"] == "verdict" else event for event in events]


def settled(verdict: Event, cases: dict[str, Any], forbidden: dict[tuple[str, str], set[str]]) -> Event:
    """Return the verdict, which is INCONCLUSIVE in place of VIOLATED if a forbidden mixture may explain each case that
    makes it that.
    """
    here = forbidden.get((verdict.get("layer", ""), verdict["cell"]), set())
    violated = (one["case"] for one in verdict["further"] if one["verdict"] == Verdict.VIOLATED)
    found = [{*cases.get(name, {}).get("mixtures", ())} & here for name in (verdict["case"], *violated)]
    if verdict["verdict"] != Verdict.VIOLATED or not all(found):
        return verdict
    mixtures = listed(sorted(set().union(*found)))
    reason = f"without the cache, answers of a batch that mixes {mixtures} differ as well (GROUND-1), and "
    return {
        **verdict,
        "verdict": Verdict.INCONCLUSIVE.value,
        "reason": f"{reason}this may need one: {verdict['reason']}",
    }
