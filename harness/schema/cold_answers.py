"""What a calibration measured about cold answers: how often they repeat, and whether they depend on their prompts."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from coldproof.harness.schema.divergences import Rate

ADAPTER = "the adapter"  # the part of a request that only requirements about adapters need

# So many of the finest steps two scores may move apart: each by one step, which is twice as large for a larger score.
STEPS = 4


class Sensitivity(msgspec.Struct, frozen=True):
    """How often a cold answer changed with one part of its request. `pairs`: requests that differed there only."""

    part: str
    changed: int
    pairs: int


class ColdAnswers(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about cold answers by which differences are explained.

    `rate`: of repeated answers. `nats`: the largest difference of a score between repeated answers; None: unknown.
    `steady`: a margin, in nats, at or below which many repeated tokens lay and none of them changed: rounding chooses
    between no tokens that are as far apart. None: tokens changed, or few were as close as anything.
    `step`: the finest step, in nats, between the scores that the engine reports, if it is so coarse that they must have
    been rounded, as those of bfloat16 are. None: they have no common step, or too few are known.
    `sensitivity`: for each part of a request; empty: not measured.
    """

    rate: Rate = Rate()
    nats: float | None = None
    steady: float | None = None
    step: float | None = None
    sensitivity: tuple[Sensitivity, ...] = ()

    @property
    def rounded_by(self) -> float:
        """Return by how many nats the rounding of scores to steps may move two of them apart; 0 without steps."""
        return STEPS * (self.step or 0.0)

    def insensitive(self, *, adapters: bool) -> str:
        """Describe the parts of a request that no answer depended on; "" if there are none.

        With such answers, a request that reads another prompt's KV is answered like a correct one.
        """
        return "; ".join(none_changed(self.sensitivity, adapters=adapters))


def none_changed(measured: Iterable[Sensitivity], *, adapters: bool) -> Iterable[str]:
    """Yield a description of each part that changed no answer. `adapters`: of the adapter, too."""
    for one in measured:
        if not one.changed and (adapters or one.part != ADAPTER):
            yield f"none of {one.pairs} cold answers changed with {one.part}"
