"""What a checker reports, and the rule by which it compares answers."""

from __future__ import annotations

import msgspec

from coldproof.harness.schema.case import NoiseBand
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.verdict import FailureClass


class Rule(msgspec.Struct, frozen=True):
    """How answers are compared with cold answers. The first of these that applies is used:

    `exact`: every token must be equal.
    `band`: the scores of an answer must lie within this noise tolerance of the scores that a cold engine gives the same
    tokens; see `coldproof.harness.judgement.checkers.noise_tolerance`.
    `noise`: a divergence counts only if the oracle's top-2 logprob margin exceeds this value (nats), the largest
    difference that the calibration measured without any cache.
    None of them: no divergence counts, and `why` says why.

    `rounding`: the margin, in nats, within which rounding may choose another token under an exact rule, by what the
    calibration measured; 0: it measured no rounding. None: too many answers diverged within it, so that it explains
    nothing any more. `cold`: what the calibration measured about cold answers.
    `pooled`: by how much a value of a pooled answer may differ from the cold one; None: not measured.
    `lossy`: what the engine's mode may change in answers by design, and why. For an answer that the mode may have
    changed, only a match with another identity's or another request's answer counts.
    """

    exact: bool
    noise: float | None = None
    why: str = "cold answers are nondeterministic, and the engine reports no scores to measure by how much"
    lossy: str = ""
    band: NoiseBand | None = None
    pooled: float | None = None
    rounding: float | None = 0.0
    cold: ColdAnswers = ColdAnswers()

    def __str__(self) -> str:
        return f"{self.exactness()}; lossy mode: {self.lossy}" if self.lossy else self.exactness()

    def exactness(self) -> str:
        """Describe how exact a comparison is, without the lossy mode."""
        if self.pooled is not None:
            return f"by values: each value of a vector may differ from the cold one by {self.pooled:.3g}"
        if self.exact:
            return "token-exact: cold answers are identical in every run, alone and in batches of the same adapter"
        if self.band is not None:
            return (
                f"by scores: an answer is wrong if its logprobs differ from those of the cold engine for the same "
                f"tokens by more than {self.band.score_nats:.3g} nats, or if the cold engine prefers another token by "
                f"more than {self.band.margin_nats:.3g} nats; noise alone exceeds this tolerance in at most one of "
                f"{1 / self.band.error_rate:,.0f} requests"
            )
        if self.noise is None:
            return f"no rule: {self.why}, so no divergence counts"
        return f"margin rule: a divergence counts if the oracle's top-2 logprob margin exceeds {self.noise:.6g} nats"

    def counts(self, gap: float | None) -> bool:
        """Return whether a divergence counts at a token with this top-2 margin of the oracle (None: not reported)."""
        return self.exact or (gap is not None and self.noise is not None and gap > self.noise)


EXACT = Rule(exact=True)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a history.

    `position`: the first token of the answer that differs. `noise`: a difference that does not count by the rule.
    `explained`: a `noise` finding for which the scores of both sides show that noise explains it, so that it leaves no
    doubt. `permitted`: a difference that a lossy mode may cause.
    """

    checker: str
    failure_class: FailureClass
    sentence: str
    request: int | None = None
    position: int | None = None
    noise: bool = False
    permitted: bool = False
    explained: bool = False
