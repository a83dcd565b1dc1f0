"""How far noise may reach, from a sample of it: the threshold that clean noise passes once in so many positions.

The largest of a few thousand differences says little about the largest of a million. What lies far above the rest of a
sample follows, for almost any distribution, a generalised Pareto law (Pickands, Balkema and de Haan); it is fitted by
probability-weighted moments (Hosking and Wallis, 1987) and followed as far as the stated rate asks for. Doubts go to
the side of a larger threshold: a shape below zero, a tail with an end, is taken for an exponential one, and the scale
by the upper end of its own uncertainty. A tail as heavy as to have no variance gives no threshold.

The rate is the law's, and the law's far end cannot be seen in any calibration: normal noise keeps the rate with room to
spare, also where some positions are several times as noisy as others; a tail that falls like a power does not.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec

# The share of a sample that the tail is fitted to: small enough for the noisiest of the positions to be by themselves.
ABOVE = 0.03
LEAST = 1000  # positions: with fewer, no thirty are above
HEAVIEST = 0.5  # shape: from here on there is no variance, and nothing bounds what is to come
DEVIATIONS = 2.0  # standard errors that the scale is taken larger by


class Tail(msgspec.Struct, frozen=True, kw_only=True):
    """A sample's law above `start`, and what it was seen to be."""

    start: float
    scale: float
    shape: float
    share: float  # of the sample that lies above the start
    largest: float
    count: int

    def beyond(self, rate: float) -> float:
        """The value that is passed at this rate; never less than the largest that was seen."""
        times = self.share / rate
        if times <= 1:
            return self.largest
        reach = math.log(times) if self.shape == 0 else math.expm1(self.shape * math.log(times)) / self.shape
        return max(self.largest, self.start + self.scale * reach)


def fitted(values: Sequence[float]) -> Tail | str:
    """The tail of a sample of absolute differences, or why there is none to state a rate by."""
    if len(values) < LEAST:
        return f"{len(values)} scores are too few to tell how far noise reaches; {LEAST} are needed"
    ordered = sorted(values)
    at = int(len(ordered) * (1 - ABOVE))
    start, above = ordered[at - 1], [value - ordered[at - 1] for value in ordered[at:]]
    count = len(above)
    mean = sum(above) / count
    if mean == 0:  # all alike, such as no differences at all
        share = count / len(values)
        return Tail(start=start, scale=0.0, shape=0.0, share=share, largest=ordered[-1], count=len(values))
    if not math.isfinite(mean):
        return "scores are missing or infinite, so that nothing tells how far noise reaches"
    weighted = sum((1 - (i + 0.65) / count) * value for i, value in enumerate(above)) / count
    shape = 2 - mean / (mean - 2 * weighted)
    if shape >= HEAVIEST:
        return f"the largest differences grow too fast for any bound (tail shape {shape:.2f})"
    scale = mean if shape <= 0 else 2 * mean * weighted / (mean - 2 * weighted)
    return Tail(
        start=start,
        scale=scale * (1 + DEVIATIONS / math.sqrt(count)),
        shape=max(0.0, shape),
        share=count / len(values),
        largest=ordered[-1],
        count=len(values),
    )


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which so much of a sample lies."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0
