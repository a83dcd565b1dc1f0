"""How long one counterexample may be minimised, how often it is replayed, and how long its controls may run."""

from __future__ import annotations

import math

import msgspec

from coldproof.harness.options import Profile

WAIVABLE_SECONDS = 15.0  # for minimising a counterexample that a known issue may waive: enough for its signature
FAMILIAR_SECONDS = 3.0  # the same where the run has confirmed a violation: it may be of the same cause
QUICK_FAMILIAR_SECONDS = 0.7  # the same on an engine in process, where a workload takes milliseconds
PART_OF_REST = 0.25  # of the time left in the run, for each of minimising, replays and controls
SLOW_PART_OF_REST = 1 / 32  # the same with a slow model, of which each step takes longer: about a tenth for all


class ProofLimits(msgspec.Struct, frozen=True, kw_only=True):
    """How long one counterexample may be minimised and its controls may run, and how often it is replayed."""

    minimise_seconds: float
    familiar_seconds: float = FAMILIAR_SECONDS
    controls_seconds: float
    replays: int
    replay_seconds: float = math.inf  # for all replays of one counterexample on one engine

    @classmethod
    def of(cls, profile: Profile, *, quick: bool) -> ProofLimits:
        """Return the limits of a profile. `quick`: the engine starts in seconds and answers in milliseconds."""
        return cls(
            minimise_seconds=profile.shrink_seconds,
            familiar_seconds=QUICK_FAMILIAR_SECONDS if quick else FAMILIAR_SECONDS,
            controls_seconds=profile.controls_seconds,
            replays=profile.replays,
        )

    def hurried(self) -> ProofLimits:
        """Return the limits for a run that has spent much of its time on proofs: its cases are larger, not weaker."""
        return msgspec.structs.replace(
            self, minimise_seconds=min(self.minimise_seconds, self.familiar_seconds), replays=1
        )

    def within(self, seconds: float, *, slow: bool = False) -> ProofLimits:
        """Return the limits for a run that has to end in `seconds`: a counterexample may take a part of these.

        `slow`: the model is slow, so that one counterexample could take the time of all requirements behind it.
        """
        most = (SLOW_PART_OF_REST if slow else PART_OF_REST) * seconds
        return msgspec.structs.replace(
            self,
            minimise_seconds=min(self.minimise_seconds, most),
            familiar_seconds=min(self.familiar_seconds, most),
            controls_seconds=min(self.controls_seconds, most),
            replay_seconds=most,
        )

    def replays_of(self, seconds: float) -> int:
        """Return how often to replay a workload that takes `seconds`: at least once, whatever it takes."""
        return max(1, int(min(self.replays, self.replay_seconds / seconds))) if seconds else self.replays

    def minimising(self, *, waivable: bool, familiar: bool) -> float:
        """Return the seconds for minimising.

        `waivable`: a known issue may waive it. `familiar`: the run has confirmed a counterexample, perhaps of this
        cause. If neither is so, it is minimised again with the full time.
        """
        most = self.familiar_seconds if familiar else WAIVABLE_SECONDS if waivable else math.inf
        return min(self.minimise_seconds, most)
