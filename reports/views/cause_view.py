"""One cause of a run's violations, as page, summary and terminal say it."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import Severity
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import fingerprint
from coldproof.reports.format.shell import command_line
from coldproof.reports.format.text import many

SIGN = {
    Severity.FOREIGN_DATA: "‼",
    Severity.WRONG_ANSWER: "✕",
    Severity.CRASH_OR_HANG: "↯",
    Severity.LOST_REUSE: "↓",
    Severity.WRONG_COUNT: "≠",
    Severity.API: "⚑",
    Severity.REMARK: "·",
}


class State(enum.StrEnum):
    """What is known of a cause, those that need action first. A waived one and a remark do not fail the run, and one
    that is not confirmed breaks no requirement.
    """

    NEW = "new"
    REGRESSION = "fixed before, and back"
    UNDECIDED = "new or known: undecided"  # no time was left to look for its cause, or it may be one of several
    KNOWN = "known, not waived"
    UNCONFIRMED = "not confirmed"  # seen, and failed in no replay, or was not replayed: it accuses nobody
    WAIVED = "known issue"
    REMARK = "remark"  # no contract forbids it


@dataclass(frozen=True, slots=True)
class CauseView:
    """One cause. `finding`: "" for a new one. `cases`: the one that shows it best comes first; it may have none.

    `releases`: on which a finding was seen. `link`: where it is reported. `repair`: whether Coldproof can mend it; None
    where that is unknown. `waived`: how many cases a known issue waives. `places`: cells, with their layers.
    """

    title: str
    severity: Severity
    state: State
    finding: str
    requirements: list[str]
    layers: list[str]
    places: list[str]
    releases: str
    link: str
    repair: bool | None
    waived: int
    cases: list[Case]

    @property
    def best(self) -> Case | None:
        """Return the case that shows the cause best; None if there is none."""
        return self.cases[0] if self.cases else None

    @property
    def is_waived(self) -> bool:
        """Return whether the known-issues file accepts all that the run saw of it."""
        return self.state is State.WAIVED

    @property
    def is_remark(self) -> bool:
        """Return whether no contract forbids it, and the run saw nothing else of it: it breaks no requirement."""
        return self.state is State.REMARK

    @property
    def is_confirmed(self) -> bool:
        """Return whether a replay showed it again, so that it may break a requirement."""
        return self.state is not State.UNCONFIRMED

    @property
    def fails(self) -> bool:
        """Return whether it fails the run: it breaks a requirement, or leaves it undecided."""
        return not (self.is_waived or self.is_remark)

    @property
    def breaks(self) -> bool:
        """Return whether it makes a requirement violated."""
        return self.fails and self.is_confirmed

    @property
    def verdict(self) -> Verdict:
        """Return the verdict of a requirement of which the run saw nothing else."""
        passes = {
            State.REMARK: Verdict.CONFORMS,
            State.WAIVED: Verdict.KNOWN_ISSUE,
            State.UNCONFIRMED: Verdict.INCONCLUSIVE,
        }
        return passes.get(self.state, Verdict.VIOLATED)

    @property
    def replay(self) -> str:
        """Return the command that replays its best case; "" if there is none."""
        if self.cases:
            return command_line(self.cases[0].replay)
        return f"coldproof findings --replay {self.finding}" if self.finding else ""

    @property
    def script(self) -> str:
        """Return the stand-alone script of its best case, relative to the report; "" if there is none."""
        if self.cases:
            return f"cases/{self.cases[0].id}.py"
        return ""

    @property
    def script_command(self) -> str:
        """Return the command that writes or runs the script of its best case, or of its finding."""
        if self.cases:
            return command_line(f"python {self.script}")
        return f"coldproof findings --script {self.finding}" if self.finding else ""

    @property
    def name(self) -> str:
        """Return the finding, or the fingerprint of the signature: what stays the same from run to run."""
        return self.finding or (fingerprint(self.cases[0].signature) if self.cases else "")

    @property
    def broke(self) -> str:
        """Return which requirements it broke in which layers, as text."""
        where = f" in {', '.join(self.layers)}" if self.layers else ""
        return f"{', '.join(self.requirements)}{where}"

    @property
    def attributed(self) -> str:
        """Return how its best case was attributed to a known cause, or why not; "" for a waived one, or if unknown."""
        found = self.best.attribution if self.best is not None else None
        if found is None or self.is_waived:
            return ""
        if found.finding and not self.finding:
            return f"like {found.finding}, which is fixed in this release"
        return found.said

    @property
    def example(self) -> str:
        """Return what its best case showed, where the title says it in general; "" for what fails nothing."""
        return self.best.sentence if self.best is not None and self.fails and self.title != self.best.sentence else ""

    @property
    def mending(self) -> str:
        """Return whether there is a repair, as text."""
        return {True: "repair", False: "no repair", None: ""}[self.repair]

    @property
    def counted(self) -> str:
        """Return how many cases show it, as text."""
        return many(len(self.cases), "case") if self.cases else "no case of this run"
