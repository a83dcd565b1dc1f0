"""A violation that a forbidden mixture may explain is withdrawn, whether GROUND-1 is decided before or after it."""

from __future__ import annotations

import itertools
from typing import Any

import msgspec
import pytest
from support import report_samples
from support.run_events import FINISHED, SOUND, STARTED, announced, concluded

from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.assemble import Event, assemble

MIXTURE = "base with adapter"
EXCLUDED = {"event": "mixture_excluded", "cell": "default", "mixture": MIXTURE}


def results(*events: Event) -> Results:
    """Return the results of a run with these events between start and end."""
    return assemble([{"at": float(i), **event} for i, event in enumerate((STARTED, SOUND, *events, FINISHED))])


def found(verdict: Verdict = Verdict.VIOLATED, mixtures: tuple[str, ...] = (MIXTURE,), **place: Any) -> list[Event]:
    """Return a counterexample of LORA-4 that may be due to these mixtures, and its verdict."""
    case = report_samples.case(requirement="LORA-4", mixtures=list(mixtures))
    return [
        announced("LORA-4", **place),
        {"event": "case", "case": msgspec.to_builtins(case)},
        concluded("LORA-4", verdict, case=case.id, **place),
    ]


@pytest.mark.parametrize("order", list(itertools.permutations(range(2))))
def test_a_forbidden_mixture_withdraws_a_violation_in_any_order(order: tuple[int, ...]) -> None:
    """GROUND-1 may run in another worker or another shard."""
    parts = (found(), [EXCLUDED])
    made = results(*(event for at in order for event in parts[at]))
    (requirement,) = made.requirements
    assert requirement.verdict is Verdict.INCONCLUSIVE
    assert MIXTURE in requirement.reason
    assert "GROUND-1" in requirement.reason
    assert "LORA-4 VIOLATED" in requirement.reason
    assert made.exit_code == 1
    assert made.totals[Verdict.VIOLATED.value] == 0


@pytest.mark.parametrize(
    "events",
    [
        found(),
        [*found(mixtures=()), EXCLUDED],
        [*found(mixtures=("adapters together",)), EXCLUDED],
        [*found(cell="tight"), EXCLUDED],
        [*found(layer="server"), {**EXCLUDED, "layer": "exact"}],
    ],
)
def test_every_other_violation_stays(events: list[Event]) -> None:
    """A violation stays without that mixture, with another one, in another cell or layer, or if nothing is
    forbidden.
    """
    assert results(*events).requirements[0].verdict is Verdict.VIOLATED


@pytest.mark.parametrize(
    ("verdict", "mixtures", "stays"),
    [
        (Verdict.VIOLATED, (), True),
        (Verdict.VIOLATED, (MIXTURE,), False),
        (Verdict.KNOWN_ISSUE, (), False),
        (Verdict.INCONCLUSIVE, (), False),
    ],
)
def test_another_violation_of_the_same_trial_stays(verdict: Verdict, mixtures: tuple[str, ...], stays: bool) -> None:
    """The mixture has to explain each case that makes the trial a violation, and only those."""
    one, first, concluded_with = found()
    other = report_samples.case(id="LORA-4-other", requirement="LORA-4", mixtures=list(mixtures))
    second = {"event": "case", "case": msgspec.to_builtins(other)}
    both = {**concluded_with, "further": [{"case": other.id, "verdict": verdict.value}]}
    made = results(one, first, second, both, EXCLUDED)
    assert (made.requirements[0].verdict is Verdict.VIOLATED) is stays


@pytest.mark.parametrize("verdict", [v for v in Verdict if v is not Verdict.VIOLATED])
def test_other_verdicts_stay(verdict: Verdict) -> None:
    """Only violations are withdrawn."""
    cells = results(*found(verdict), EXCLUDED).requirements[0].cells
    assert [cell.verdict for cell in cells] == [verdict]
