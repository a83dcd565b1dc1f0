"""A run under noise ends as soon as it has found enough."""

from __future__ import annotations

import os
from types import SimpleNamespace
from typing import Any

import pytest

from coldproof.harness.event_log import CONFIRMING
from coldproof.harness.power.noise.with_faults import EXIT_FOUND, MAX_FAILED_EXAMPLES, EarlyStop

WRONG: tuple[str, dict[str, Any]] = ("example", {"findings": ["one"]})
RIGHT: tuple[str, dict[str, Any]] = ("example", {"findings": []})


@pytest.mark.parametrize(
    ("events", "ends"),
    [
        ([WRONG] * MAX_FAILED_EXAMPLES, True),
        ([WRONG] * (MAX_FAILED_EXAMPLES - 1) + [RIGHT], False),
        ([WRONG, ("phase", {"stage": CONFIRMING, "words": "in any words"})], True),
        ([WRONG, ("phase", {"words": "confirming LORA-1 on a fresh engine"})], False),
        ([RIGHT, ("phase", {"stage": CONFIRMING, "words": "in any words"})], False),
    ],
)
def test_it_ends_with_enough_or_as_the_first_is_confirmed(
    events: list[tuple[str, dict[str, Any]]], ends: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The fields of the event decide this, and not its wording."""
    codes: list[int] = []
    monkeypatch.setattr(os, "_exit", codes.append)
    listener, conductor = EarlyStop(), SimpleNamespace(pool=None)
    for kind, fields in events:
        listener.on_event(conductor, kind, fields)  # type: ignore[arg-type]
    assert codes == ([EXIT_FOUND] if ends else [])
