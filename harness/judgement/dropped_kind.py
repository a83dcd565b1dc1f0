"""A kind of request that a run has stopped sending, because the engine died of it."""

from __future__ import annotations

import msgspec

from coldproof.harness.workload.request_kinds import RequestKind


class DroppedKind(msgspec.Struct, frozen=True, kw_only=True):
    """A kind that is no longer sent, and why.

    `case`: the confirmed case; "" if the engine died of it in the calibration, which no fresh engine has confirmed yet.
    `known_issue`: the known issue that waives this case.
    """

    kind: RequestKind
    cell: str
    requirement: str
    why: str
    case: str = ""
    known_issue: str | None = None

    @property
    def words(self) -> str:
        """Describe since when and why, for the reason of a verdict."""
        since = f"case {self.case} of {self.requirement}" if self.case else "the calibration"
        return f"requests with {self.kind.value} have not been sent since {since} in cell '{self.cell}': {self.why}"
