"""To which known cause a counterexample belongs, and how that was found. See docs/known-issues.md."""

from __future__ import annotations

import enum
from collections.abc import Collection, Sequence

import msgspec

from coldproof.harness.schema.findings import ReplayResult

MOST_NAMED = 3  # repairs of one replay that are named; of more, their number says enough
REPEATS = (
    5  # with a repair, for each replay without it that passed: where two of three fail, luck passes all once in 240
)
MOST_TOGETHER = MOST_NAMED  # causes to which one case belongs together
NO_TIME = "not tried (budget)"
FAILED = {ReplayResult.FAILS, ReplayResult.OTHERWISE}


class Basis(enum.StrEnum):
    """How a case was attributed, or why it was not."""

    REPAIR = "by repair"  # it vanishes with this repair alone, and fails without it
    LOCAL = "by replay on a local engine of the same release"  # the same, on an engine that Coldproof could repair
    SIGNATURE = "by signature alone"  # no repair could be tried; the record of a finding has this signature
    UNDECIDED = "undecided"  # it may be one of several findings, or the time did not suffice to try their repairs
    NEW = "no known cause"  # no repair ends it, and no finding without a repair is like it
    OTHERWISE = "fails differently"  # all repairs together change the way in which it fails, and no single one ends it
    NOT_TRIED = "not tried"  # the time of the run did not suffice, and no finding has its signature
    GONE = "not reproduced"  # it does not fail again on the engine as it is shipped
    NOT_RUN = "not run"


class CauseReplay(msgspec.Struct, frozen=True, kw_only=True):
    """A replay that was made to find a case's cause: with which repairs, and what it showed.

    `repairs`: their names, if there are few. `number`: how many there were; 0: the engine was that of the run.
    `words`: in which other way it failed, or why it could not be run.
    """

    result: ReplayResult
    number: int = 0
    repairs: list[str] = []
    words: str = ""

    @classmethod
    def under(cls, names: Sequence[str], result: ReplayResult, words: str = "") -> CauseReplay:
        """Return the replay under these repairs. `words` are kept if it neither failed like the case nor passed."""
        said = "" if result in (ReplayResult.FAILS, ReplayResult.PASSES) else words
        few = list(names) if len(names) <= MOST_NAMED else []
        return cls(result=result, number=len(names), repairs=few, words=said)


class Attribution(msgspec.Struct, frozen=True, kw_only=True):
    """What is known of a case's cause. `finding`: "" without one. `words`: what was seen, as a clause.

    `candidates`: the findings among which it is undecided, or whose signature it has. `link`: the public report of the
    finding. `tried`: the finding that it is like, and whose repair it was replayed with. `remark`: the finding is a
    remark, which no contract forbids, and the case is shown to be nothing else: it vanishes with the repair, or the
    record says that it shows so. `replays`: those that were made, in their order. `with_findings`: the other causes
    that act in the case as well, so that it vanishes only with the repairs of all together.
    """

    basis: Basis
    finding: str = ""
    candidates: list[str] = []
    link: str = ""
    tried: list[str] = []
    words: str = ""
    remark: bool = False
    replays: list[CauseReplay] = []
    with_findings: list[str] = []

    @property
    def is_known(self) -> bool:
        """Return whether the case belongs to a known cause."""
        return bool(self.finding)

    @property
    def is_undecided(self) -> bool:
        """Return whether the case may belong to a known cause, which was not found out."""
        return self.basis in (Basis.UNDECIDED, Basis.NOT_TRIED) or bool(self.candidates)

    @property
    def findings(self) -> list[str]:
        """Return the causes that act in the case; none if none is known."""
        return [self.finding, *self.with_findings] if self.finding else []

    def is_shown_by(self, repairs: Collection[str], *, failed: bool) -> bool:
        """Return whether its replays show that the case vanishes with these repairs, and with no fewer of them.

        `failed`: the case has failed again on the engine of the run, so that no replay without repairs is needed. Where
        some of these passed, it takes luck to fail, and more replays with the repairs have to pass.
        """

        def shown(names: Collection[str]) -> list[ReplayResult]:
            return [one.result for one in self.replays if one.number == len(names) and set(one.repairs) == set(names)]

        without, ended = shown(()), shown(repairs)
        passed = without.count(ReplayResult.PASSES)
        fails = without.count(ReplayResult.FAILS) == len(without) - passed > 0 or (not without and failed)
        fewer = [shown(set(repairs) - {one}) for one in repairs] if len(repairs) > 1 else []
        needed = all(some and set(some) <= FAILED for some in fewer)
        return fails and needed and set(ended) == {ReplayResult.PASSES} and len(ended) > passed * REPEATS

    @property
    def is_by_replay(self) -> bool:
        """Return whether replays with and without a repair showed the cause."""
        return self.is_known and self.basis in (Basis.REPAIR, Basis.LOCAL)

    @property
    def lacked_time(self) -> bool:
        """Return whether repairs were not tried because the time was over."""
        return self.basis is Basis.NOT_TRIED or self.words == NO_TIME

    @property
    def said(self) -> str:
        """Return in a few words to what the case belongs."""
        if self.is_by_replay:
            return f"vanishes with {self.repairs_of(' and '.join(self.findings))} ({self.basis.value})"
        if self.basis is Basis.SIGNATURE:
            return f"matches {self.finding or ' or '.join(self.candidates)} {self.basis.value}"
        if self.candidates:
            several = bool(self.candidates[1:])
            return f"undecided {'between' if several else 'whether it is'} {', '.join(self.candidates)}"
        if self.basis is Basis.OTHERWISE:
            return Basis.NEW.value
        return NO_TIME if self.basis is Basis.NOT_TRIED else self.basis.value

    def repairs_of(self, named: str) -> str:
        """Return the words for the repairs with which it vanishes. `named`: their findings."""
        return f"the repairs of {named} together" if self.with_findings else f"the repair of {named}"

    @property
    def sentence(self) -> str:
        """Return the same with what was seen."""
        return f"{self.said}: {self.words}" if self.words else self.said

    @property
    def how(self) -> str:
        """Return how the finding was found, where its name is said already."""
        if self.is_by_replay:
            others = " and ".join(["this finding", *self.with_findings])
            return f"it vanishes with {self.repairs_of(others)} ({self.basis.value})"
        return f"{self.basis.value}: {self.words}" if self.words else self.basis.value

    @property
    def not_accepted(self) -> str:
        """Return the sentence about a case that no known issue accepts."""
        if self.basis in (Basis.NEW, Basis.OTHERWISE):
            return f"It has {self.sentence}."
        if self.with_findings or (not self.finding and self.basis is Basis.SIGNATURE):
            return f"It {self.sentence}; not all of them are accepted in this run."
        if not self.finding:
            return f"{'It is' if self.candidates else 'Its cause is'} {self.sentence}."
        reported = f"reported as {short_link(self.link)}" if self.link else "with no public report known"
        return f"It matches {self.finding}, {reported}, not accepted in this run: {self.how}."


def short_link(link: str) -> str:
    """Return a link to an issue or a pull request as its number, any other as it is."""
    number = link.rstrip("/").rsplit("/", 1)[-1]
    return f"#{number}" if number.isdigit() else link
