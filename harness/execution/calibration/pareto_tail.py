"""Extrapolates from a sample of noise to the threshold that noise exceeds only at a given rate.

The largest of a few thousand differences says little about the largest of a million. The tail of almost any
distribution follows a generalised Pareto law (Pickands, Balkema and de Haan). It is fitted by probability-weighted
moments (Hosking and Wallis, 1987) and extrapolated to the given rate. In doubt, the threshold is larger: a shape below
zero (a tail with an end) is replaced by an exponential tail, and the scale by the upper end of its uncertainty. A tail
so heavy that it has no variance gives no threshold.

A shape above zero is weighed against what is known without the sample, as in Martins and Stedinger (2000): sums of
rounding errors have no heavy tail, and positions that differ in noise have a moderate one. A slow model's sample has
sixty values in its tail, and chance alone may give a shape of 0.3. Extrapolated to one in a hundred million, that was
6 and 14 nats for differences of which none of 2,448 exceeded 0.15 (Gemma 3 270M in bfloat16).

The rate holds as far as the law does; no calibration can observe the far end of the tail. Normal noise stays well below
the rate, also if some positions are several times as noisy as others. A tail with a power law does not.
"""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence

import msgspec

# The share of a sample to which the tail is fitted: small enough to contain only the noisiest positions.
ABOVE = 0.03
ABOVE_VARYING = 0.1  # the same, of the values above zero
LEAST_ABOVE = 30  # values of a tail, if so many vary: of four values, a law says nothing
LEAST = 1000  # positions; with fewer, the tail has fewer than thirty
HEAVIEST = 0.5  # shape from which on there is no variance, and no bound
UPPER = 0.1  # the share of a sample in which steps are looked for
MOST_DISTINCT = 0.25  # of its values differ, if they come in steps
STEP_DIGITS = 4  # decimal places to which equal values agree
DEVIATIONS = 2.0  # standard errors that are added to the scale
# How far shapes of numeric noise lie from zero. Normal noise whose scale varies from position to position, also as a
# lognormal, keeps the stated rate about as often as without this weighing, and the largest of a hundred thresholds is a
# thirtieth of the largest without it.
KNOWN_SPREAD = 0.15


class ParetoTail(msgspec.Struct, frozen=True, kw_only=True):
    """The generalised Pareto law of a sample above `start`, and facts about the sample."""

    start: float
    scale: float
    shape: float
    share: float  # of the sample that lies above the start
    largest: float
    count: int

    def beyond(self, rate: float) -> float:
        """Return the value that is exceeded at this rate, and at least the largest value of the sample."""
        times = self.share / rate
        if times <= 1:
            return self.largest
        reach = math.log(times) if self.shape == 0 else math.expm1(self.shape * math.log(times)) / self.shape
        return max(self.largest, self.start + self.scale * reach)


def fit_tail(values: Sequence[float]) -> ParetoTail | str:
    """Fit the tail of a sample of absolute differences. Return the reason if it cannot be fitted."""
    if len(values) < LEAST:
        return f"{len(values)} scores are too few to measure noise; {LEAST} are needed"
    ordered = without_steps(sorted(values))
    at = len(ordered) - tail_size(ordered)
    start, above = ordered[at - 1], [value - ordered[at - 1] for value in ordered[at:]]
    count = len(above)
    mean = sum(above) / count
    if mean == 0:  # all are equal, for example zero
        share = count / len(values)
        return ParetoTail(start=start, scale=0.0, shape=0.0, share=share, largest=ordered[-1], count=len(values))
    if not math.isfinite(mean):
        return "scores are missing or infinite, so that noise cannot be measured"
    weighted = sum((1 - (i + 0.65) / count) * value for i, value in enumerate(above)) / count
    shape = 2 - mean / (mean - 2 * weighted)
    if shape >= HEAVIEST:
        return f"the largest differences have no bound (tail shape {shape:.2f})"
    scale = mean if shape <= 0 else 2 * mean * weighted / (mean - 2 * weighted)
    return ParetoTail(
        start=start,
        scale=scale * (1 + DEVIATIONS / math.sqrt(count)),
        shape=max(0.0, weighed(shape, count)),
        share=count / len(values),
        largest=ordered[-1],
        count=len(values),
    )


def tail_size(ordered: Sequence[float]) -> int:
    """Return how many of the largest values make up the tail: a share of all, and of those that vary at all.

    Prompt scores mostly repeat exactly. A tail that began among the zeros would seem to have no bound. Where few values
    vary, as in half precision with a small model, they are all taken: thresholds from a tenth of them were between a
    tenth and ten times of those.
    """
    varying = sum(value > 0 for value in ordered) or len(ordered)
    of_varying = max(math.ceil(ABOVE_VARYING * varying), min(varying, LEAST_ABOVE))
    return min(math.ceil(ABOVE * len(ordered)), of_varying)


def weighed(shape: float, count: int) -> float:
    """Return the mean of a measured shape and zero, weighted by how well each is known.

    The variance of a shape that was estimated from `count` values is at least (1 + shape)^2 / count.
    """
    measured, known = (1 + shape) ** 2 / count, KNOWN_SPREAD**2
    return shape * known / (known + measured)


def without_steps(ordered: Sequence[float]) -> list[float]:
    """Spread values that come in steps evenly over the step above them; return others unchanged.

    Half-precision logits are multiples of up to an eighth. Margins between them take a handful of values, and a law for
    continuous values would read the steps as a tail without a bound. Spread upwards, the noise is never underestimated.
    """
    upper = ordered[int(len(ordered) * (1 - UPPER)) :]
    places = sorted({round(value, STEP_DIGITS) for value in upper})
    if len(places) < 2 or len(places) > len(upper) * MOST_DISTINCT or not math.isfinite(places[-1]):
        return list(ordered)
    step = statistics.median(after - before for before, after in itertools.pairwise(places))
    spread = []
    for _, group in itertools.groupby(ordered, key=lambda value: round(value, STEP_DIGITS)):
        same = list(group)
        spread += [value + step * i / len(same) if value else value for i, value in enumerate(same)]
    return sorted(spread)


def quantile(values: Sequence[float], share: float) -> float:
    """Return the value below which this share of a sample lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
