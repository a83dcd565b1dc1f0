"""The step of scores: margins of a number format with few bits are multiples of one, those of float32 are not."""

from __future__ import annotations

import random
import struct
from collections.abc import Callable, Iterable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coldproof.adapters.protocol.requests import Token
from coldproof.harness.execution.calibration.calibrate import exact_rule
from coldproof.harness.execution.calibration.repeats import STEADY_TOKENS, repeats_of, score_step
from coldproof.harness.judgement.oracle import Answer
from coldproof.harness.schema.cold_answers import ColdAnswers


def as_bfloat16(value: float) -> float:
    """Return a number with the seven leading bits of its fraction, as bfloat16 keeps it."""
    (bits,) = struct.unpack("<I", struct.pack("<f", value))
    (rounded,) = struct.unpack("<f", struct.pack("<I", bits & 0xFFFF0000))
    return float(rounded)


def as_float16(value: float) -> float:
    """Return a number as float16 keeps it."""
    (rounded,) = struct.unpack("<e", struct.pack("<e", value))
    return float(rounded)


def margins(rounded: Callable[[float], float], count: int = 4 * STEADY_TOKENS) -> list[float]:
    """Return top-2 margins of random logits between 2 and 16."""
    chance = random.Random(0)
    return [abs(rounded(chance.uniform(2, 16)) - rounded(chance.uniform(2, 16))) for _ in range(count)]


def answer(gaps: Iterable[float]) -> Answer:
    """Return an answer whose tokens have these margins."""
    return Answer(tuple(Token(id=0, at=0.0, gap=gap) for gap in gaps))


def test_logits_of_few_bits_have_a_step() -> None:
    """It is that of the smallest logits, and a bit of float32 in the margins hides it no more than it must."""
    assert score_step([answer(margins(as_bfloat16))]) == 2**-6
    assert score_step([answer(margins(as_float16))]) == 2**-9
    assert score_step([answer(gap + 1e-7 for gap in margins(as_bfloat16))]) == 2**-6


def test_float32_has_none() -> None:
    """Its margins lie between the multiples of every step that is looked for."""
    assert score_step([answer(margins(float))]) is None


def test_few_or_equal_margins_show_none() -> None:
    """An engine that reports one margin for all tokens must not get a tolerance by it."""
    assert score_step([answer(margins(as_bfloat16, STEADY_TOKENS - 1))]) is None
    assert score_step([answer([0.25] * 400)]) is None
    assert score_step([answer([])]) is None


@pytest.mark.parametrize(("rounds", "step"), [(True, 2**-6), (False, None)])
def test_scores_of_an_engine_without_floating_point_have_no_step(*, rounds: bool, step: float | None) -> None:
    """Those of the fingerprint worker have a common step, and were taken for rounded ones: then rounding
    explained every sampled answer that differed.
    """
    engine = SimpleNamespace(shape=SimpleNamespace(rounds=rounds))
    said = answer(margins(as_bfloat16))
    assert repeats_of(cast(Any, SimpleNamespace(engine=engine)), {}, [(said, said)]).step == step


def test_rounding_is_a_few_steps_but_less_than_what_many_repeated_tokens_rule_out() -> None:
    """Scores of few bits repeat exactly in equal computations, so that their steps are all that is known."""
    assert exact_rule(ColdAnswers(nats=0.0, steady=0.1, step=2**-6)).rounding == 4 * 2**-6
    limited = exact_rule(ColdAnswers(nats=0.0, steady=0.02, step=2**-6)).rounding
    assert limited is not None
    assert 0.019 < limited < 0.02
    assert exact_rule(ColdAnswers(nats=0.0, steady=0.1)).rounding == 0.0
