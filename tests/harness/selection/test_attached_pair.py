"""A router that a user attaches has two engines behind it if the user says so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.histories import BLOCK, history, outcome, shape

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.sides import declare_apart
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.options import Options, UsageError
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.selection.validation import check_options
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine


@pytest.mark.parametrize("apart", [False, True])
def test_no_hit_on_an_answer_is_expected_of_a_router(*, apart: bool) -> None:
    """A next turn that hits only the earlier prompt is lost reuse for one engine, and correct for two."""
    engine = ScriptedEngine()
    engine.shape = shape()
    if apart:
        declare_apart(engine)
    first, turn = range(100, 100 + BLOCK), range(100, 100 + 3 * BLOCK)
    answer = tuple(turn[BLOCK:])
    made = history(outcome(0, first, answer), outcome(1, turn, cached_tokens=BLOCK), shape=engine.shape)
    assert [one.failure_class for one in check_bounds(made)] == ([] if apart else [FailureClass.LOST_REUSE])
    assert bool(engine.capabilities[Capability.PREFILL_APART].present) is apart
    assert (engine.capabilities[Capability.RESET_SECOND_TIER].present is False) or not apart


def test_an_engine_of_our_own_is_started_as_a_pair_by_its_cell() -> None:
    """The error is one line."""
    with pytest.raises(UsageError, match=re.escape("--prefill-apart requires --engine-url; cell prefill-decode")):
        check_options(Options(report_dir=Path("out"), engine="vllm", prefill_apart=True))
    with pytest.raises(UsageError, match="--exclusive requires --engine-url"):
        check_options(Options(report_dir=Path("out"), engine="vllm", exclusive=True))
