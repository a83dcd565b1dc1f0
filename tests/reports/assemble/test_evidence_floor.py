"""A requirement conforms only with enough examples or requests over its layers."""

from __future__ import annotations

from typing import Any

import pytest

from coldproof.harness.schema.results import CellResult
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.evidence_floor import seconds_short, shortfall


def cell(examples: int, requests: int = 0, *, layer: str = "exact", **more: Any) -> CellResult:
    """Return a cell of a layer with this many examples."""
    facts: dict[str, Any] = {"verdict": Verdict.CONFORMS, "reason": "", "evidence": {}, "seconds": 1.0}
    return CellResult(cell="default", layer=layer, examples=examples, requests=requests, **{**facts, **more})


@pytest.mark.parametrize(
    "cells",
    [
        (cell(30),),
        (cell(2, 100),),
        (cell(20), cell(10)),
        (cell(25), cell(5, layer="server")),
        (cell(30, layer="server"),),
        (cell(3, exhausted=True),),
        (cell(3, exhausted=True), cell(5, layer="server")),
        (cell(40), cell(2, layer="server", exhausted=True)),
        (cell(30), cell(0, layer="server", verdict=Verdict.UNSUPPORTED)),
    ],
)
def test_enough_evidence_has_no_shortfall(cells: tuple[CellResult, ...]) -> None:
    """Examples or requests count; fewer suffice if no others exist, and five on a server next to another layer."""
    assert shortfall(cells) == ""


@pytest.mark.parametrize(
    ("cells", "said"),
    [
        (
            (cell(29, 99),),
            "only 29 examples with 99 requests; CONFORMS needs 30 examples or 100 requests: raise",
        ),
        ((cell(1, 4), cell(2, 8)), "only 3 examples with 12 requests"),
        ((cell(40), cell(4, layer="server")), "only 4 examples in the server layer; CONFORMS needs 5 there"),
        ((cell(3, exhausted=True), cell(4, layer="server")), "only 4 examples in the server layer"),
        ((cell(3, exhausted=True), cell(4)), "only 7 examples"),
        ((cell(10, drawn=20.0),), "for this requirement, a --budget 3 times as large"),
        ((cell(10, 50, drawn=20.0),), "for this requirement, a --budget 2 times as large"),
    ],
)
def test_a_shortfall_names_what_is_needed(cells: tuple[CellResult, ...], said: str) -> None:
    """The estimate follows from the pace so far, where there is one."""
    assert said in shortfall(cells)


@pytest.mark.parametrize(
    ("cells", "seconds"),
    [
        ((cell(10, drawn=20.0),), 40.0),
        ((cell(10, 50, drawn=20.0), cell(0, verdict=Verdict.UNSUPPORTED)), 20.0),
        ((), 0.0),
    ],
)
def test_the_time_to_the_floor_follows_from_the_pace(cells: tuple[CellResult, ...], seconds: float) -> None:
    """By examples or by requests, whichever comes first."""
    assert seconds_short(cells) == pytest.approx(seconds)
