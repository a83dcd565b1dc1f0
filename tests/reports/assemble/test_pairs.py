"""A pair of features counts if a decided cell had both on, and shows that both acted."""

from __future__ import annotations

from typing import Any

from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.pairs import feature_pairs, pairs_summary

POSSIBLE = {"layers, tier": ["full+none", "full+host", "window+none", "window+host"]}


LOADED = "tokens loaded"


def seen(cell: str, verdict: Verdict, examples: int = 8, loaded: int = 64, **more: Any) -> dict[str, Any]:
    """Return a verdict in a cell."""
    evidence = {"hits": 3, LOADED: loaded}
    return {
        "event": "verdict",
        "cell": cell,
        "verdict": verdict.value,
        "examples": examples,
        "evidence": evidence,
    } | more


def told(**cells: list[str]) -> dict[str, Any]:
    """Return what a run announces of its cells."""
    return {"event": "pairs", "possible": POSSIBLE, "cells": cells, "acts": {"host": LOADED}}


def test_only_decided_cells_count() -> None:
    """One that was not tested enough, or that could not be tested, shows nothing of its pair."""
    cells = told(tight=["full", "none"], crossed=["window", "host"], other=["full", "host"])
    verdicts = [seen("tight", Verdict.CONFORMS), seen("crossed", Verdict.NOT_EXERCISED)]
    verdicts += [seen("other", Verdict.CONFORMS, examples=0)]
    (row,) = feature_pairs([cells, *verdicts])
    assert (row.dimensions, row.possible, row.missing) == (
        "layers, tier",
        4,
        ["full+host", "window+none", "window+host"],
    )
    (row,) = feature_pairs([cells, *verdicts, seen("crossed", Verdict.VIOLATED)])
    assert row.missing == ["full+host", "window+none"]
    assert pairs_summary([row]) == "pairs of features at once: 2 of 4"


def test_a_feature_that_did_nothing_counts_nowhere() -> None:
    """The tier was on, and nothing was loaded from it: the same verdict says as much of a cell without a tier."""
    cells = told(crossed=["window", "host"])
    (row,) = feature_pairs([cells, seen("crossed", Verdict.CONFORMS, loaded=0)])
    assert len(row.missing) == 4
    violated = seen("crossed", Verdict.VIOLATED, loaded=0)
    (row,) = feature_pairs([cells, violated, seen("crossed", Verdict.CONFORMS)])
    assert row.missing == ["full+none", "full+host", "window+none"]


def test_a_cell_counts_in_each_layer() -> None:
    """One process announces the cells of all layers, and does not know which of them a layer opens."""
    cells = told(tight=["full", "none"])
    (row,) = feature_pairs([cells, seen("tight", Verdict.CONFORMS, layer="exact")])
    assert len(row.missing) == 3


def test_an_engine_without_dimensions_has_no_pairs() -> None:
    """Nothing is said of them."""
    assert feature_pairs([seen("tight", Verdict.CONFORMS)]) == []
    assert pairs_summary([]) == ""
