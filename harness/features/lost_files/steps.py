"""Losses of a tier's files."""

from __future__ import annotations

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.lost_files import Loss
from coldproof.harness.workload.kinds.kind import Mark, StepKind


class LoseFiles(StepKind, frozen=True, tag="lose_files"):
    """Remove or cut the files in which a tier keeps KV. The engine is not told."""

    loss: Loss

    def describe(self) -> str:
        """Return the step in one line."""
        return f"the files of the tier are {self.loss}"

    def mark(self) -> Mark:
        """Return the row."""
        return Mark(kind=f"files of the tier {self.loss}")

    def needs(self) -> tuple[Capability, ...]:
        """Return the capability of an engine with such files. One without a cache has none."""
        return (Capability.TIER_FILES,)
