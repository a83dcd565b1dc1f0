"""The result of a requirement follows from its tests: the needed evidence, and the reasons as one sentence."""

from __future__ import annotations

from typing import Any

import pytest
from support.run_events import UNREMARKABLE

from coldproof.reports.assemble.requirement_results import one_text, requirement_results


@pytest.mark.parametrize(
    ("reasons", "text"),
    [
        (["Request 1 hit too much.", "Request 2 hit too little."], "Request 1 hit too much; Request 2 hit too little."),
        (["too few examples", "too few examples"], "too few examples"),
        (
            ["no reset: none is known; no salt: none", "no salt: none; no tower: none"],
            "no reset: none is known; no salt: none; no tower: none",
        ),
        ([""], ""),
    ],
)
def test_reasons_are_joined_without_a_full_stop_within(reasons: list[str], text: str) -> None:
    assert one_text(reasons) == text


def events_of(test: str, verdict: str, shows: str) -> list[dict[str, Any]]:
    """Return the events of a test that needs one kind of evidence."""
    about = {"title": test, "statement": "It is so.", "parts": {}, "shows": [shows], "upstream": [], "fails_on": []}
    counts = {"reason": "", "examples": 1, "requests": 1, "evidence": {}, "seconds": 1.0}
    where = {"cell": "default", "layer": "exact", "test": test}
    return [
        {"event": "requirement", "id": "MM-1", **where, **about},
        {"event": "verdict", "requirement": "MM-1", "verdict": verdict, **UNREMARKABLE, **where, **counts},
    ]


@pytest.mark.parametrize(
    ("verdicts", "needed"),
    [
        (("CONFORMS", "CONFORMS"), ["hits", "salts"]),
        (("CONFORMS", "UNSUPPORTED"), ["hits"]),
        (("UNSUPPORTED", "UNSUPPORTED"), ["hits", "salts"]),
    ],
)
def test_what_is_unsupported_needs_no_evidence(verdicts: tuple[str, str], needed: list[str]) -> None:
    """The page would show it as 0 if another test of the requirement ran. If none ran, it shows what would be
    needed.
    """
    events = [*events_of("first", verdicts[0], "hits"), *events_of("second", verdicts[1], "salts")]
    (result,) = requirement_results(events)
    assert result.needed == needed


@pytest.mark.parametrize(
    ("stage", "verdict"), [("proof", "INCONCLUSIVE"), ("replay", "INCONCLUSIVE"), ("more", "NOT EXERCISED")]
)
def test_a_killed_run_has_not_forgotten_what_waited_for_its_proof(stage: str, verdict: str) -> None:
    """Its other tests do not conform for it."""
    announced, _ = events_of("first", "CONFORMS", "hits")
    where = {"requirement": "MM-1", "cell": "default", "layer": "exact", "test": "first"}
    (result,) = requirement_results([announced, {"event": "waits", "stage": stage, **where}])
    assert result.verdict == verdict
