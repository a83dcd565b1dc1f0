"""How far noise may reach is stated with a rate, which holds for distributions with known tails."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from coldproof.harness.execution.calibration.pareto_tail import LEAST, ParetoTail, fit_tail, quantile

SAMPLE = 7000
Draw = Callable[[np.random.Generator, int], np.ndarray]


def half_normal(random: np.random.Generator, count: int) -> np.ndarray:
    """Return half-normal values, the usual shape of numeric noise."""
    return np.abs(random.normal(0.0, 1.0, count))


def exponential(random: np.random.Generator, count: int) -> np.ndarray:
    """Return values with a heavier tail."""
    return random.exponential(1.0, count)


def mixed(random: np.random.Generator, count: int) -> np.ndarray:
    """Return noise with one position in ten noisier than the others, as where a model is uncertain."""
    return half_normal(random, count) * np.where(random.random(count) < 0.1, 3.0, 1.0)


STEP = 0.125  # between the logits of a model in bfloat16


def stepped(random: np.random.Generator, count: int) -> np.ndarray:
    """Return noise of a tenth of a nat in half precision, which has few different values."""
    return np.round(0.1 * half_normal(random, count) / STEP) * STEP + random.normal(0.0, 1e-7, count)


def beyond_step(nats: float) -> float:
    """Return how often that noise exceeds a threshold: the next larger multiple, from half a step before it on."""
    return math.erfc((math.floor(nats / STEP) + 0.5) * STEP / 0.1 / math.sqrt(2))


def tail_of(draw: Draw, seed: int, count: int = SAMPLE) -> ParetoTail:
    """Return the law that is fitted to a sample."""
    found = fit_tail(list(draw(np.random.default_rng(seed), count)))
    assert isinstance(found, ParetoTail)
    return found


# What a standard normal exceeds, on either side, once in so many; of the mixture the wide part decides.
EXACT: dict[Draw, Callable[[float], float]] = {
    half_normal: lambda nats: math.erfc(nats / math.sqrt(2)),
    exponential: lambda nats: math.exp(-nats),
    stepped: beyond_step,
    mixed: lambda nats: 0.1 * math.erfc(nats / 3 / math.sqrt(2)) + 0.9 * math.erfc(nats / math.sqrt(2)),
}


@pytest.mark.parametrize("draw", EXACT)
@pytest.mark.parametrize("rate", [1e-4, 1e-6, 5e-9])
def test_a_threshold_is_exceeded_at_most_at_its_rate(draw: Draw, rate: float) -> None:
    """The thresholds of nearly all of fifty samples keep the rate, and none is so large that everything passes."""
    thresholds = [tail_of(draw, seed).beyond(rate) for seed in range(50)]
    kept = [EXACT[draw](nats) <= rate for nats in thresholds]
    assert sum(kept) >= 47
    # What lets everything pass keeps any rate: a quarter of the threshold would not.
    assert all(EXACT[draw](nats / 4) > rate for nats in thresholds)


def uneven(random: np.random.Generator, count: int) -> np.ndarray:
    """Return noise whose size varies by position (lognormal), as between certain and uncertain tokens of a model."""
    return half_normal(random, count) * np.exp(np.clip(random.normal(0.0, 1.0, count), -9.0, 3.0))


def beyond_uneven(nats: float) -> float:
    """Return how often that noise exceeds a threshold: the mean over all sizes."""
    sizes = np.linspace(-5.0, 5.0, 2001)
    weights = np.exp(-(sizes**2) / 2) / np.exp(-(sizes**2) / 2).sum()
    return sum(
        float(weight) * math.erfc(nats / math.exp(min(float(size), 3.0)) / math.sqrt(2))
        for size, weight in zip(sizes, weights, strict=True)
    )


def test_a_small_sample_of_uneven_noise_gives_a_threshold_that_is_of_use() -> None:
    """The thresholds of a small sample keep a low rate and are not too large.

    With two thousand values, as from a slow model, four of five calibrations keep one in a hundred million, all keep
    one in a hundred thousand, and no threshold is four times what the rate needs. Without weighting, one of a
    hundred was 118 times that.
    """
    thresholds = [tail_of(uneven, seed, 2000).beyond(1e-8) for seed in range(50)]
    assert sum(beyond_uneven(nats) <= 1e-8 for nats in thresholds) >= 40
    assert all(beyond_uneven(nats) <= 1e-5 for nats in thresholds)
    assert all(beyond_uneven(nats / 4) > 1e-8 for nats in thresholds)


def test_a_rate_that_can_be_counted_is_kept_by_fresh_noise() -> None:
    """The rate of one in a thousand holds for two hundred thousand new values, and some do exceed the threshold."""
    nats = tail_of(half_normal, 1).beyond(1e-3)
    others = half_normal(np.random.default_rng(2), 200_000)
    assert 0 < np.mean(others > nats) <= 1e-3


def test_a_rarer_alarm_takes_a_larger_threshold() -> None:
    """The threshold is never below the largest measured value."""
    tail = tail_of(half_normal, 3)
    assert tail.beyond(0.5) == tail.largest
    assert tail.largest <= tail.beyond(1e-4) < tail.beyond(1e-6) < tail.beyond(1e-9)


def test_noise_of_ten_times_the_size_has_ten_times_the_threshold() -> None:
    """The unit does not matter."""
    small = list(half_normal(np.random.default_rng(4), SAMPLE))
    one, ten = fit_tail(small), fit_tail([10 * value for value in small])
    assert isinstance(one, ParetoTail)
    assert isinstance(ten, ParetoTail)
    assert ten.beyond(1e-6) == pytest.approx(10 * one.beyond(1e-6))


@pytest.mark.parametrize("seed", range(5))
def test_an_unbounded_tail_gives_no_threshold(seed: int) -> None:
    """The values are Pareto distributed with an infinite variance, so the next one may have any size."""
    said = fit_tail(list(np.random.default_rng(seed).pareto(1.2, SAMPLE)))
    assert isinstance(said, str)
    assert "have no bound" in said


def test_too_few_give_no_threshold() -> None:
    """The text says how many are needed."""
    said = fit_tail([0.1] * (LEAST - 1))
    assert isinstance(said, str)
    assert str(LEAST) in said


def test_scores_that_are_no_numbers_give_no_threshold() -> None:
    """An infinite difference is not the end of a tail."""
    assert isinstance(fit_tail([0.1] * SAMPLE + [math.inf]), str)


@pytest.mark.parametrize("seed", range(5))
def test_a_tail_does_not_begin_among_values_that_repeat(seed: int) -> None:
    """One prompt score in fifty varies. The tail of those is described, not the step from zero to them."""
    random = np.random.default_rng(seed)
    sparse = [*half_normal(random, SAMPLE // 50), *np.zeros(SAMPLE - SAMPLE // 50)]
    found = fit_tail(sparse)
    assert isinstance(found, ParetoTail)
    assert found.start > 0
    assert found.beyond(1e-6) < 3 * 4.1  # what one in a million of them exceeds, given that one in fifty varies


def test_no_noise_at_all_allows_nothing() -> None:
    """The threshold is zero at any rate."""
    found = fit_tail([0.0] * LEAST)
    assert isinstance(found, ParetoTail)
    assert found.beyond(1e-9) == 0.0


def test_quantiles() -> None:
    """A quantile is the value below which that share lies."""
    values = [float(i) for i in range(100)]
    assert (quantile(values, 0.5), quantile(values, 0.99), quantile(values, 1.0)) == (50.0, 99.0, 99.0)
    assert quantile([], 0.5) == 0.0


def rare(random: np.random.Generator, varying: int) -> list[float]:
    """Return 4,032 scores of which few differ, as of a small model in half precision."""
    noise = 0.012 * half_normal(random, varying) * np.exp(np.clip(random.normal(0.0, 0.7, varying), -3.0, 3.0))
    return [*noise, *[0.0] * (4032 - varying)]


@pytest.mark.parametrize("varying", [10, 40, 100])
def test_few_values_that_vary_give_thresholds_of_one_size(varying: int) -> None:
    """With a tenth of them in the tail, some of fifty thresholds were two hundred times as large as others."""
    laws = [fit_tail(rare(np.random.default_rng(seed), varying)) for seed in range(50)]
    thresholds = [law.beyond(5e-9) for law in laws if isinstance(law, ParetoTail)]
    assert len(thresholds) >= 44
    assert max(thresholds) < 12 * min(thresholds)
