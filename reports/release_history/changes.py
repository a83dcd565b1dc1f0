"""Where a verdict changes from one release to a later one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from coldproof.reports.schema.releases import ReleaseCase, ReleaseHistory, ReleaseRow, ReleaseVerdict
from coldproof.reports.schema.verdict import Verdict

JUDGED = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE, Verdict.CONFORMS)
BROKEN = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE)


@dataclass(frozen=True, slots=True)
class Change:
    """A requirement that is violated on one release and conforms on the next one that says either, or the reverse."""

    requirement: str
    before: ReleaseRow
    after: ReleaseRow

    @property
    def mended(self) -> bool:
        """Whether the later release conforms."""
        return self.verdict(self.after).verdict not in BROKEN

    @property
    def cases(self) -> list[ReleaseCase]:
        """The counterexamples of the release that is violated."""
        return self.verdict(self.before if self.mended else self.after).cases

    def verdict(self, row: ReleaseRow) -> ReleaseVerdict:
        """Return the requirement's verdict on one of the two releases."""
        return row.verdicts[self.requirement]


def changes(history: ReleaseHistory) -> list[Change]:
    """Return every change, by requirement and then by release."""
    return [change for requirement in history.requirements for change in changes_of(requirement, history.releases)]


def changes_of(requirement: str, rows: list[ReleaseRow]) -> Iterator[Change]:
    """Yield the changes of one requirement. A release without a verdict on it says nothing."""
    before: ReleaseRow | None = None
    for row in rows:
        if not says(row.verdicts, requirement):
            continue
        if before is not None and broken(before, requirement) is not broken(row, requirement):
            yield Change(requirement, before, row)
        before = row


def says(verdicts: Mapping[str, ReleaseVerdict], requirement: str) -> bool:
    """Return whether a release is known to conform or to be violated."""
    return requirement in verdicts and verdicts[requirement].verdict in JUDGED


def broken(row: ReleaseRow, requirement: str) -> bool:
    """Return whether a release is violated."""
    return row.verdicts[requirement].verdict in BROKEN
