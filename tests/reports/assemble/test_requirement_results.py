"""The reasons of several tests read as one sentence."""

from __future__ import annotations

import pytest

from coldproof.reports.assemble.requirement_results import one_text


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
