"""To which known cause a counterexample belongs: to the one whose repair alone makes it vanish.

Where an engine takes no repairs, only likeness is left: a finding's signature, which says what happened and not why.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Sequence

import msgspec

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingRecord


class Basis(enum.StrEnum):
    """How a case was attributed, or why it was not."""

    REPAIR = "repair"  # it vanishes with this repair alone, and comes back without it
    SIGNATURE = "signature"  # the engine takes no repairs; a finding has the same signature
    NEW = "no known cause"  # it fails in the same way under every repair, or no finding is like it
    OTHERWISE = "fails differently"  # all repairs together change the way in which it fails, and no single one ends it
    GONE = "not reproduced"  # it does not fail on the engine as it is shipped
    NOT_RUN = "not run"


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a case's cause. `finding`: "" without one. `words`: what was seen, as a sentence."""

    case: str
    basis: Basis
    finding: str = ""
    words: str

    @property
    def is_known(self) -> bool:
        """Return whether the case belongs to a known cause."""
        return bool(self.finding)


def in_order_of_likeness(case: Case, records: Iterable[FindingRecord]) -> list[FindingRecord]:
    """Return the findings, those that are most like a case first: by requirement, class and parts of the signature."""

    def likeness(record: FindingRecord) -> tuple[bool, bool, int]:
        shared = set(record.signature.split("; ")) & set(case.signature.split("; "))
        return record.failure_class == case.failure_class, record.requirement == case.requirement, len(shared)

    return sorted(records, key=lambda record: (*(-int(part) for part in likeness(record)), record.id))


def by_signature(case: Case, records: Sequence[FindingRecord], why: str) -> Attribution:
    """Return the attribution of a case whose engine takes no repairs. `why`: says so, as a clause."""
    same = [one.id for one in records if one.signature == case.signature and one.requirement == case.requirement]
    if len(same) == 1:
        words = f"{why}; it has the signature of this finding, which another cause may have, too"
        return Attribution(case=case.id, basis=Basis.SIGNATURE, finding=same[0], words=words)
    words = f"{why}, and {'several findings have' if same else 'no finding has'} its signature"
    return Attribution(case=case.id, basis=Basis.NEW, words=words)
