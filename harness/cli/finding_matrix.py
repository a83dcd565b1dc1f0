"""`coldproof findings --matrix`: the square of findings' cases and repairs. It must be diagonal.

A repair removes the case of its own finding, and of the findings that it names in `ALSO`. Every other case fails with
it as it does without. What is off this diagonal is a repair that does too little or too much, or two findings with
one cause.

With `--together`, a case is replayed with all repairs at once that do not name it. If it fails there as it is shipped,
none of them removes it: three replays in place of forty. Otherwise halves of them tell which.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

import msgspec

from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.repair import Repair
from coldproof.harness.case.finding_records import StoredFinding, read_findings
from coldproof.harness.case.repairs import NONE, installed_release, read_repairs, repairing
from coldproof.harness.cli.finding_runs import Outcome, no_repairs, obstacle
from coldproof.harness.options import UsageError
from coldproof.harness.schema.findings import FindingRecord, ReplayResult
from coldproof.harness.session.causes.local_engine import engine_of_case
from coldproof.harness.session.causes.replay_job import ReplayEnd
from coldproof.harness.session.causes.saved_replays import SavedReplays

MARKS = {ReplayResult.FAILS: "F", ReplayResult.OTHERWISE: "~", ReplayResult.PASSES: ".", ReplayResult.NOT_RUN: " "}
EXPLAINED = "F still there   ~ fails in a different way   . gone   (blank) not run   [ ] must be gone"
TOGETHER = "f still there with all of these repairs at once"


class Square(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of each case under each repair. The first column, NONE, is the engine as it is shipped.

    `shared`: places that were seen with several repairs at once. `mixed`: what only several repairs at once change.
    """

    records: list[FindingRecord]
    repairs: list[Repair]
    outcomes: dict[tuple[str, str], Outcome]  # by repair and finding
    shared: frozenset[tuple[str, str]] = frozenset()
    mixed: tuple[str, ...] = ()

    @property
    def columns(self) -> list[str]:
        """Return the names of the columns."""
        return [NONE, *(one.name for one in self.repairs)]

    def mended(self, repair: str, finding: str) -> bool:
        """Return whether a repair says that it removes a case."""
        return any(one.name == repair and finding in one.mends for one in self.repairs)

    def off(self) -> Iterator[str]:
        """Yield what no repair declares, in a sentence each. A case that did not run shows nothing."""
        yield from self.mixed
        for (repair, finding), one in self.outcomes.items():
            mended = self.mended(repair, finding)
            if one.result is ReplayResult.NOT_RUN:
                if one.broken and not self.never_starts(finding):
                    yield f"{finding} under {repair} could not be run: {one.words}"
            elif mended and one.result is not ReplayResult.PASSES:
                yield f"{finding} is not removed by {repair}: {one.result.value}{said(one)}"
            elif not mended and not self.same(one, finding):
                yield f"{finding} is {one.result.value} under {repair}, which does not name it{said(one)}"

    def never_starts(self, finding: str) -> bool:
        """Return whether the engine of a case does not even start, unless a repair that removes the case is in it."""
        shipped = self.outcomes.get((NONE, finding))
        mended = (one for (repair, name), one in self.outcomes.items() if name == finding and self.mended(repair, name))
        return (
            shipped is not None
            and shipped.result is ReplayResult.NOT_RUN
            and any(one.result is ReplayResult.PASSES for one in mended)
        )

    def same(self, one: Outcome, finding: str) -> bool:
        """Return whether a case without its repair fails as it does on the engine that is shipped.

        A case that takes luck may pass, and what is fixed in this release is gone.
        """
        shipped = self.outcomes.get((NONE, finding), one)
        return one.as_recorded if shipped is one else one.result is shipped.result or one.record.rate is not None


def said(one: Outcome) -> str:
    """Return what a replay showed, behind a colon; empty if nothing was said."""
    return f": {one.words}" if one.words else ""


def square_of(
    records: Sequence[FindingRecord],
    only: Sequence[str],
    say: Callable[[str], None],
    *,
    together: bool = False,
    replays: SavedReplays | None = None,
) -> Square:
    """Replay these findings on the engine that is shipped, and under each repair for it.

    `only`: the findings whose repairs are columns; empty: all. `together`: under those that do not name a finding at
    once. Raises UsageError if there is nothing to replay.
    """
    here = [one for one in records if not (obstacle(one) or no_repairs(one))]
    repairs = fitting_repairs(here, only)
    if not here or not repairs:
        raise UsageError("--matrix: no case and repair of an engine that is installed")
    replays, found = replays or SavedReplays(), read_findings(here)
    if together:
        rows = []
        for number, one in enumerate(found, 1):
            rows.append(Row(one, [r for r in repairs if r.name.split("/")[0] == one.record.engine], replays).filled())
            say(f"{number} of {len(found)} cases: {rows[-1].line()}")
        return Square(
            records=here,
            repairs=repairs,
            outcomes={(name, row.finding.id): one for row in rows for name, one in row.outcomes.items()},
            shared=frozenset((name, row.finding.id) for row in rows for name in row.shared),
            mixed=tuple(words for row in rows for words in row.mixed),
        )
    outcomes: dict[tuple[str, str], Outcome] = {}
    for number, name in enumerate([NONE, *(one.name for one in repairs)]):
        say(f"{number} of {len(repairs)} repairs: {name}")
        for one in found:
            if name in (NONE, one.id) or one.record.engine == name.split("/")[0]:
                outcomes[name, one.id] = replayed(one, (name,), replays)
    return Square(records=here, repairs=repairs, outcomes=outcomes)


class Row:
    """The replays of one case: as shipped, with each repair that names it, and with all others at once."""

    def __init__(self, finding: StoredFinding, repairs: Sequence[Repair], replays: SavedReplays) -> None:
        self.finding, self.repairs, self.replays = finding, repairs, replays
        self.outcomes: dict[str, Outcome] = {}
        self.shared: set[str] = set()
        self.mixed: list[str] = []

    def filled(self) -> Row:
        """Return the row with all its replays."""
        own = [one.name for one in self.repairs if self.finding.id in one.mends]
        others = [one.name for one in self.repairs if one.name not in own]
        for name in (NONE, *own):
            self.outcomes[name] = replayed(self.finding, (name,), self.replays)
        if others:
            self.under(others)
        return self

    def line(self) -> str:
        """Return the row in a line: how the case ended as shipped, with each of its own repairs, and with the others.

        The others that change it are named.
        """
        shipped = self.outcomes[NONE]
        own = [one for one in self.repairs if self.finding.id in one.mends]
        others = {name: one for name, one in self.outcomes.items() if name not in (NONE, *(one.name for one in own))}
        marks = [MARKS[shipped.result], *(f"[{MARKS[self.outcomes[one.name].result]}]" for one in own)]
        changed = [f"{MARKS[one.result]} {name}" for name, one in others.items() if one.result is not shipped.result]
        alike = f"{len(others) - len(changed)} as shipped"
        return f"{self.finding.id}  {' '.join(marks)}  {', '.join([alike, *changed])}"

    def under(self, names: Sequence[str]) -> bool:
        """Replay the case under these repairs at once, and under parts of them if it is not as it is shipped.

        Return whether it was.
        """
        one = replayed(self.finding, names, self.replays)
        same = one.result is self.outcomes[NONE].result
        if same or not names[1:]:
            self.outcomes |= dict.fromkeys(names, one)
            self.shared |= set(names) if names[1:] else set()
            return same
        half = len(names) // 2
        halves = [self.under(names[:half]), self.under(names[half:])]
        if all(halves):
            words = (
                f"{self.finding.id} is {one.result.value} under {len(names)} repairs at once, and under no half of them"
            )
            self.mixed.append(f"{words} ({names[0]} to {names[-1]}){said(one)}")
        return False


def replayed(finding: StoredFinding, repairs: Sequence[str], replays: SavedReplays) -> Outcome:
    """Replay the case of a finding under these repairs at once, or NONE, and return the outcome."""
    assert finding.case is not None
    assert finding.workload is not None
    began, local = time.monotonic(), engine_of_case(finding.case, model=finding.record.found.model)
    if isinstance(local, str):
        end = ReplayEnd(ReplayResult.NOT_RUN, local)
    else:
        end = replays.run(finding.case, finding.workload, local, repairs)
    return Outcome(
        finding.record,
        end.result,
        end.words,
        installed_release(ENGINES[finding.record.found.adapter]),
        time.monotonic() - began,
        broken=end.broken,
    )


def fitting_repairs(records: Sequence[FindingRecord], only: Sequence[str]) -> list[Repair]:
    """Return the repairs of these findings' engines, as installed. Raises UsageError for a finding without one."""
    releases = {one.engine: installed_release(ENGINES[one.found.adapter]) for one in records}
    found = [one for one in read_repairs().values() if one.name.split("/")[0] in releases]
    for name in only:
        if repairing(name, found) is None:
            raise UsageError(f"--only: the finding {name!r} has no repair for an engine that is installed")
    chosen = {repairing(name, found) for name in only} if only else set(found)
    return [one for one in found if one in chosen and one.is_for(releases[one.name.split("/")[0]]) and not one.absent]


def drawn(square: Square) -> str:
    """Return the square as text: a row for each case, a numbered column for each repair."""
    width = max(len(one.id) for one in square.records)
    columns = square.columns
    legend = [f"{number:>3}  {name}" for number, name in enumerate(columns)]
    head = " " * width + "".join(f"{number:>4}" for number in range(len(columns)))
    rows = [
        record.id.ljust(width) + "".join(mark(square, name, record.id) for name in columns) for record in square.records
    ]
    explained = "   ".join([EXPLAINED, *([TOGETHER] if square.shared else [])])
    return "\n".join([*legend, "", head, *rows, "", explained])


def mark(square: Square, repair: str, finding: str) -> str:
    """Return one place of the square."""
    one = square.outcomes.get((repair, finding))
    text = MARKS[one.result] if one is not None else " "
    if (repair, finding) in square.shared:
        text = text.lower()
    return f" [{text}]" if square.mended(repair, finding) else f"  {text} "
