"""The bound on explained divergences: its error rate by enumeration, and what it detects."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest

from coldproof.harness.schema.divergences import (
    ERROR,
    RUN_ERROR,
    TESTS,
    Rate,
    binomial_tail,
    chance,
    describe,
    divergence_rates,
    exceeds,
    misses_explained,
)
from coldproof.harness.schema.evidence import ReportedEvidence

NONE = Rate()


def binomial(tokens: int, rate: float) -> list[float]:
    """Return the probability of each number of divergences."""
    return [math.comb(tokens, k) * rate**k * (1 - rate) ** (tokens - k) for k in range(tokens + 1)]


@pytest.mark.parametrize(("least", "of", "share"), [(0, 5, 0.3), (1, 5, 0.3), (3, 7, 0.9), (7, 7, 0.5), (8, 7, 0.5)])
def test_the_tail_is_exact(least: int, of: int, share: float) -> None:
    """The result is compared with exact fractions."""
    yes = Fraction(share)
    exact = sum(math.comb(of, k) * yes**k * (1 - yes) ** (of - k) for k in range(least, of + 1))
    assert binomial_tail(least, of, share) == pytest.approx(float(exact), rel=1e-12)


def test_the_tail_of_large_numbers_neither_overflows_nor_vanishes() -> None:
    """A long run has several hundred thousand answers."""
    assert 0.4 < binomial_tail(100_000, 200_000, 0.5) < 0.6
    assert binomial_tail(1, 10, 0.0) == 0.0
    assert binomial_tail(10, 10, 1.0) == 1.0


@pytest.mark.parametrize("rate", [0.001, 0.02, 0.1, 0.3, 0.6])
@pytest.mark.parametrize(("hits", "reference"), [(60, 60), (120, 40), (40, 120), (150, 15)])
def test_equal_rates_exceed_the_bound_at_most_at_the_stated_error(hits: int, reference: int, rate: float) -> None:
    """Every outcome is weighted by its probability, without random draws, for one reference and for both as one
    sample.
    """
    of_hits, of_reference = binomial(hits, rate), binomial(reference, rate)
    error = math.fsum(
        p * q
        for k, p in enumerate(of_hits)
        for m, q in enumerate(of_reference)
        if p * q > 0 and chance(Rate(hits, k), Rate(reference, m)) <= ERROR
    )
    assert error <= ERROR


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.3])
def test_the_whole_rule_keeps_the_stated_error(rate: float) -> None:
    """Both references are used, and divergences without a hit have to be explained too."""
    tokens = 40
    each = binomial(tokens, rate)
    error = math.fsum(
        p * q * r
        for k, p in enumerate(each)
        for m, q in enumerate(each)
        for c, r in enumerate(each)
        if p * q * r > ERROR * 1e-6 and exceeds(Rate(tokens, k), Rate(tokens, m), Rate(tokens, c))
    )
    assert error + ERROR * 1e-6 * len(each) ** 3 <= RUN_ERROR / 10
    assert error <= 2 * ERROR


def test_a_run_keeps_its_error_over_all_its_bounds() -> None:
    """There is one bound for each requirement in each cell, and one for each cell."""
    assert pytest.approx(RUN_ERROR) == ERROR * TESTS
    assert RUN_ERROR <= 1e-4


@pytest.mark.parametrize(
    ("hits", "misses", "cold", "too_many"),
    [
        (Rate(36, 36), Rate(480, 0), Rate(270, 0), True),  # wrong on each hit, at its first token
        (Rate(400, 12), Rate(480, 0), Rate(270, 0), False),  # not yet
        (Rate(24_000, 40), Rate(12_000, 0), Rate(7000, 0), True),  # wrong on one hit in fifty
        (Rate(24_000, 40), Rate(12_000, 20), Rate(7000, 12), False),  # noise that does not care for hits
        (Rate(24_000, 40), Rate(12_000, 0), Rate(7000, 12), False),  # noise of chunks, measured without a cache
        (Rate(24_000, 400), Rate(12_000, 0), Rate(7000, 12), True),  # ten times as much
        (Rate(35, 35), Rate(240, 0), Rate(34, 34), True),  # noise that ended with the calibration
        (Rate(480, 0), Rate(480, 0), Rate(270, 0), False),
        (Rate(480, 1), NONE, NONE, True),  # nothing was measured that could explain it
        (Rate(480, 1), Rate(480, 0), NONE, False),
        (Rate(480, 1), NONE, Rate(270, 0), False),
        (Rate(480, 0), Rate(480, 480), Rate(7000, 0), True),  # without hits, too, and not cold
        (Rate(36, 36), Rate(36, 36), Rate(7000, 0), True),
    ],
)
def test_when_divergences_exceed_the_bound(hits: Rate, misses: Rate, cold: Rate, *, too_many: bool) -> None:
    """The bound is exceeded exactly in these cases."""
    assert exceeds(hits, misses, cold) is too_many


def test_answers_without_a_hit_may_vary_more_than_those_of_the_calibration() -> None:
    """Their prompts and batches are different."""
    assert misses_explained(Rate(10_000, 120), Rate(7000, 30))
    assert not misses_explained(Rate(10_000, 600), Rate(7000, 30))


def test_the_counters_are_rates_and_words() -> None:
    """Rates follow from the named counters, and a missing counter gives no rate."""
    names = ReportedEvidence
    evidence = {
        names.COMPARED_HITS: 36.0,
        names.DIVERGED_HITS: 36.0,
        names.TOKENS_HITS: 40.0,
        names.COMPARED_MISSES: 40.0,
        names.TOKENS_MISSES: 480.0,
    }
    assert divergence_rates(evidence) == (Rate(40, 36), Rate(480, 0))
    said = describe(evidence, Rate(1270, 0))
    assert "36 of 36 prompts diverged on a hit, to 0 of 40 without a hit" in said
    assert "0 of 1,270 tokens" in said
    assert Rate(3, 1) + Rate(4, 1) == Rate(7, 2)
