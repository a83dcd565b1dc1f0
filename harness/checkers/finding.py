"""What a checker says."""

from __future__ import annotations

import msgspec

from reports.schema import FailureClass, NoiseBand


class Rule(msgspec.Struct, frozen=True):
    """How exact a comparison may be. Exact: every token counts. With a `band`, an answer is right whose scores lie as
    near to the cold side's scores of the same tokens as noise explains: see `harness.checkers.noisy`. Otherwise a
    divergence counts only where the oracle's top-2 logprob gap exceeds `noise` (nats), the largest difference that the
    calibration saw without any cache. Without `noise` none counts, and `why` says why.

    `lossy`: what a mode may change in answers by design, and why. Where it may have changed one, no difference counts
    but one that is somebody else's answer.
    """

    exact: bool
    noise: float | None = None
    why: str = "cold answers do not repeat and no scores say by how much"
    lossy: str = ""
    band: NoiseBand | None = None

    def __str__(self) -> str:
        return f"{self.exactness()}; lossy mode: {self.lossy}" if self.lossy else self.exactness()

    def exactness(self) -> str:
        """How exact a comparison is, in words."""
        if self.exact:
            return "token-exact: cold answers repeat exactly, alone and in batches of their own kind"
        if self.band is not None:
            return (
                f"by scores: an answer is wrong where the cold side scores its tokens more than "
                f"{self.band.score_nats:.3g} nats otherwise than it does itself, or puts one more than "
                f"{self.band.margin_nats:.3g} nats behind another; noise alone goes so far in at most one of "
                f"{1 / self.band.error_rate:,.0f} requests"
            )
        if self.noise is None:
            return f"no rule: {self.why}, so no divergence counts"
        return f"margin rule: a divergence counts where the oracle's top-2 gap exceeds {self.noise:.6g} nats"

    def counts(self, gap: float | None) -> bool:
        """Whether a divergence counts where the oracle's top-2 gap is this; None: it told none."""
        return self.exact or (gap is not None and self.noise is not None and gap > self.noise)


EXACT = Rule(exact=True)


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that is wrong with a history. `noise`: a difference that the rule does not let count; `explained`: and
    both sides' scores show it to be noise, so that it leaves no doubt; `permitted`: one that a lossy mode may make.
    """

    checker: str
    failure_class: FailureClass
    sentence: str
    request: int | None = None
    position: int | None = None
    noise: bool = False
    permitted: bool = False
    explained: bool = False
