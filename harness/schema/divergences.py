"""How often answers diverged from cold answers, and whether their number is explained by what was measured.

A divergence is explained only as often as a measured cause allows. No score and no margin can show that: an engine that
reports small margins for wrong answers would explain them all. So the rate on hits is held against two rates:

* that of cold repetitions: the calibration's cold answers, alone again, in batches, and continued from their half;
* that of the same run's answers without a hit, which the cache cannot have changed. This one counts only as long as it
  is explained by the cold repetitions itself.

Each of them may have a cause that the other lacks: answers without a hit are computed like the cold ones, while
repetitions are few. So a rate is too high if it exceeds both. Where no cold repetition diverged, no cause was measured
there: both are then one sample.

A rate is per token, because answers have different lengths: a diverged answer has as many tokens as it shares with the
cold one, and one more. If hits and a reference have the same rate, the number on hits, given the sum of both, follows a
binomial distribution whose probability is the hits' share of the tokens. (Exactly so for Poisson numbers; for rates
below one, the hypergeometric distribution of Fisher's test is narrower.) If numbers as large as the observed one have a
probability of `ERROR` or less, the bound is exceeded.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from coldproof.harness.schema.evidence import ReportedEvidence

# The probability that a run of an engine whose hits diverge as often as its other answers exceeds the bound anywhere.
# A run has at most TESTS bounds, one for each requirement in each cell and one for each cell as a whole.
RUN_ERROR, TESTS = 1e-4, 1000
ERROR = RUN_ERROR / TESTS
# The prompts and batches of a run are others than those of its calibration, so that the noise of answers without a hit
# may be so many times as frequent.
OTHER_PROMPTS = 4.0


class Rate(msgspec.Struct, frozen=True):
    """Of so many tokens, this number was the first of its answer to differ."""

    tokens: int = 0
    diverged: int = 0

    def __add__(self, other: Rate) -> Rate:
        """Return the rate over both samples."""
        return Rate(self.tokens + other.tokens, self.diverged + other.diverged)

    @property
    def value(self) -> float:
        """Return the divergences of a token; 0 without tokens."""
        return self.diverged / self.tokens if self.tokens else 0.0


def divergence_rates(evidence: Mapping[str, float]) -> tuple[Rate, Rate]:
    """Return the rates on hits and without hits, from counters of evidence."""
    names = ReportedEvidence
    hits = (names.TOKENS_HITS, names.DIVERGED_HITS)
    misses = (names.TOKENS_MISSES, names.DIVERGED_MISSES)
    on_hits, without = (Rate(*(round(evidence.get(name, 0)) for name in pair)) for pair in (hits, misses))
    return on_hits, without


def describe(evidence: Mapping[str, float], cold: Rate) -> str:
    """Describe how many answers diverged, on hits, without them, and among cold repetitions."""
    names = ReportedEvidence
    hits, misses = (
        f"{round(evidence.get(diverged, 0))} of {round(evidence.get(compared, 0))}"
        for diverged, compared in (
            (names.DIVERGED_HITS, names.COMPARED_HITS),
            (names.DIVERGED_MISSES, names.COMPARED_MISSES),
        )
    )
    return (
        f"the answers to {hits} prompts diverged on a hit, to {misses} without a hit, and cold repetitions at "
        f"{cold.diverged} of {cold.tokens:,} tokens"
    )


def exceeds(hits: Rate, misses: Rate, cold: Rate) -> bool:
    """Return whether divergences are more frequent on hits, or without them, than measured causes allow.

    A reference without any token supports nothing. Cold repetitions that diverged much more often than the run's own
    answers without a hit explain nothing of this run: the engine was noisy before it, and is no more.
    """
    if not misses_explained(misses, cold):
        return True
    if misses.tokens and chance(cold, misses, times=OTHER_PROMPTS) <= ERROR:
        return chance(hits, misses) <= ERROR
    if not cold.diverged or not misses.tokens:
        return chance(hits, cold + misses) <= ERROR
    return max(chance(hits, cold), chance(hits, misses)) <= ERROR


def misses_explained(misses: Rate, cold: Rate) -> bool:
    """Return whether answers without a hit diverge as rarely as the cold repetitions allow."""
    return misses.diverged == 0 or chance(misses, cold, times=OTHER_PROMPTS) > ERROR


def chance(one: Rate, reference: Rate, *, times: float = 1.0) -> float:
    """Return the probability of at least `one.diverged` divergences, if the rate is `times` that of the reference.

    It is conditional on the sum of both numbers. Without tokens of the reference, it is 0 for any divergence.
    """
    share = times * one.tokens / (times * one.tokens + reference.tokens) if one.tokens else 0.0
    if one.diverged == 0:
        return 1.0
    if reference.tokens == 0:
        return 0.0
    return binomial_tail(one.diverged, one.diverged + reference.diverged, share)


def binomial_tail(least: int, of: int, share: float) -> float:
    """Return the probability of at least `least` successes in `of` trials with this probability of success."""
    if least <= 0 or share >= 1.0:
        return 1.0
    if share <= 0.0:
        return 0.0
    yes, no = math.log(share), math.log1p(-share)
    whole = math.lgamma(of + 1)
    return min(
        1.0,
        math.fsum(
            math.exp(whole - math.lgamma(k + 1) - math.lgamma(of - k + 1) + k * yes + (of - k) * no)
            for k in range(least, of + 1)
        ),
    )
