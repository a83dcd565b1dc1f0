"""What changed from one run to the next: how each requirement changed in each cell. A pure function of the columns.

Invariant: a requirement that is no longer exercised is never called fixed. Two failures are the same if requirement and
signature are equal. Case ids, nonces and the order of results differ from run to run and are ignored. A run that has no
verdict on a requirement in a cell says nothing of it: the next one is compared with the last one that has.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.side_by_side.columns import Column
from coldproof.reports.views import overview

Place = tuple[str, str]  # requirement, cell
NO_CASE = ""  # the signature of a violation without a saved case; it never equals another failure


class ChangeKind(enum.StrEnum):
    """How a requirement changed in a cell. The most urgent kinds come first.

    `like`: the verdict whose colour it has, so that a colour has one meaning. `meaning`: in a sentence.
    """

    like: Verdict
    meaning: str

    def __new__(cls, value: str, like: Verdict, meaning: str) -> ChangeKind:
        member = str.__new__(cls, value)
        member._value_, member.like, member.meaning = value, like, meaning
        return member

    NEWLY_VIOLATED = "newly violated", Verdict.VIOLATED, "Violated now; did not fail before."
    FAILS_DIFFERENTLY = (
        *("fails in a different way", Verdict.VIOLATED),
        "Failed before, and fails now with a new signature.",
    )
    NO_LONGER_EXERCISED = (
        *("no longer exercised", Verdict.NOT_EXERCISED),
        "Had a verdict before, has none now. Earlier failures are not shown to be fixed.",
    )
    WAIVER_REMOVED = (
        *("waiver removed", Verdict.INCONCLUSIVE),
        "The same failure as before; it was waived as a known issue and is not waived now.",
    )
    STILL_VIOLATED = "still violated", Verdict.VIOLATED, "Violated in both runs, with the same signature."
    NEWLY_WAIVED = "newly waived", Verdict.KNOWN_ISSUE, "Waived as a known issue now, and not before."
    STILL_WAIVED = "still waived", Verdict.KNOWN_ISSUE, "The same known issue in both runs."
    FIXED = "fixed", Verdict.CONFORMS, "Failed before, and conforms now with the required evidence."
    NEWLY_EXERCISED = "newly exercised", Verdict.CONFORMS, "Conforms now, and had no verdict before."
    UNCHANGED = "unchanged", Verdict.UNSUPPORTED, "Conforms in both runs, or has no verdict in either."


NEW = (ChangeKind.NEWLY_VIOLATED, ChangeKind.FAILS_DIFFERENTLY, ChangeKind.NO_LONGER_EXERCISED)
STILL = (ChangeKind.STILL_VIOLATED, ChangeKind.STILL_WAIVED, ChangeKind.UNCHANGED)  # the same as before
_FAILS = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE)
_JUDGED = (*_FAILS, Verdict.CONFORMS)


@dataclass(frozen=True, slots=True)
class Transition:
    """Cells with the same change from one verdict to another. None: the run has no such requirement and cell.

    `before`: the label of the run that had the earlier verdict. `reason`: why there is no verdict now.
    """

    before: str
    was: Verdict | None
    now: Verdict | None
    reason: str
    cells: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """How one requirement changed, or one failure of it (by signature), in all cells with this change.

    `column`: the later run. `requests`: of the later run in these cells. `gone`: earlier signatures that did not occur
    now, in cells that still fail; not called fixed. `elsewhere`: other cells in which an earlier run had the same
    signature. `case`: an example of the later run if it fails there, else of the earlier one, which is `of`.
    """

    kind: ChangeKind
    column: Column
    requirement: str
    title: str
    signature: str
    transitions: list[Transition]
    requests: int
    cases_before: list[str]
    cases_now: list[str]
    gone: list[str]
    elsewhere: list[str]
    case: Case | None
    of: Column

    @property
    def unsaved(self) -> bool:
        """Whether there is a failure without a saved case in either run."""
        verdicts = {verdict for transition in self.transitions for verdict in (transition.was, transition.now)}
        return self.case is None and not verdicts.isdisjoint(_FAILS)


class _Run:
    """One run, indexed by place. An invalid run has no valid verdicts and so no places."""

    def __init__(self, column: Column) -> None:
        self.column, results = column, column.results
        valid = [] if column.invalid else results.requirements
        self.titles = {requirement.id: requirement.title for requirement in valid}
        self.rows = {
            (requirement.id, row.cell): row for requirement in valid for row in overview.cell_rows(requirement)
        }
        self.cases: dict[Place, dict[str, list[Case]]] = {}
        for case in sorted(results.cases, key=lambda case: (case.known_issue is not None, case.id, case.sentence)):
            by_signature = self.cases.setdefault((case.requirement, case.cell), {})
            by_signature.setdefault(case.signature, []).append(case)

    def verdict(self, place: Place) -> Verdict | None:
        """Return the verdict of a place; None if the run does not have the place."""
        return self.rows[place].verdict if place in self.rows else None

    def judges(self, place: Place) -> bool:
        """Return whether the run is known to fail or to conform in a place."""
        return self.verdict(place) in _JUDGED

    def failures(self, place: Place) -> dict[str, bool]:
        """Return the signatures of the failures in a place, and whether each is waived."""
        verdict = self.verdict(place)
        if verdict not in _FAILS:
            return {}
        cases = self.cases.get(place, {})
        if verdict is Verdict.KNOWN_ISSUE:
            return dict.fromkeys(cases, True) or {NO_CASE: True}
        waived = {
            sign: all(case.known_issue is not None or case.is_remark for case in same) for sign, same in cases.items()
        }
        return waived if False in waived.values() else {**waived, NO_CASE: False}  # a violation is never lost


def changes(columns: Sequence[Column]) -> list[Change]:
    """Return what changed from each run to the next, the most urgent first. What did not change is not left out.

    The order of results and cases in a run does not matter.
    """
    found: list[Change] = []
    runs = [_Run(column) for column in columns]
    earlier: dict[Place, _Run] = {}
    for last, now in zip([None, *runs], runs, strict=False):
        if last is not None:
            found += _compared(earlier, last, now)
        earlier.update({place: now for place in now.rows if now.judges(place) or not _judged(earlier, place)})
    kinds = list(ChangeKind)
    order = {run.column.label: place for place, run in enumerate(runs)}
    return sorted(
        found, key=lambda one: (kinds.index(one.kind), order[one.column.label], one.requirement, one.signature)
    )


def exit_code(found: Sequence[Change]) -> int:
    """Return 1 if something is new or nothing was compared, else 0. Warnings and slowdowns are not failures."""
    return int(not found or any(change.kind in NEW for change in found))


def conclusion(found: Sequence[Change]) -> str:
    """Return whether anything is new, in capitals."""
    kinds = {change.kind for change in found}
    if not kinds:
        return "NOTHING COMPARED"
    if kinds & {ChangeKind.NEWLY_VIOLATED, ChangeKind.FAILS_DIFFERENTLY}:
        return "NEW FAILURES"
    return "LESS EXERCISED THAN BEFORE" if ChangeKind.NO_LONGER_EXERCISED in kinds else "NO NEW FAILURES"


def by_kind(found: Sequence[Change]) -> list[tuple[ChangeKind, list[Change]]]:
    """Return the changes of each kind that there is, by run, requirement and signature."""
    kinds = [(kind, [change for change in found if change.kind is kind]) for kind in ChangeKind]
    return [(kind, changes) for kind, changes in kinds if changes]


def _judged(earlier: Mapping[Place, _Run], place: Place) -> bool:
    return place in earlier and earlier[place].judges(place)


def _compared(earlier: Mapping[Place, _Run], last: _Run, now: _Run) -> Iterator[Change]:
    """Yield the changes of one run. `earlier`: for each place the run that it is compared with; `last`: the one before.

    What an earlier run left unexercised is reported for that run alone.
    """
    grouped: dict[tuple[ChangeKind, str, str], list[str]] = defaultdict(list)
    for place in sorted(earlier.keys() | now.rows.keys()):
        known = earlier.get(place, last)
        if known is last or now.judges(place):
            for kind, signature in _changes(place, known, now):
                grouped[kind, place[0], signature].append(place[1])
    for (kind, requirement, signature), cells in grouped.items():
        yield _change(
            kind, signature, {(requirement, cell): earlier.get((requirement, cell), last) for cell in cells}, now
        )


def _changes(place: Place, before: _Run, now: _Run) -> Iterator[tuple[ChangeKind, str]]:
    """Yield the changes of a place: one for each failure, or exactly one if neither run fails."""
    past, present, verdict = before.failures(place), now.failures(place), now.verdict(place)
    if present:
        yield from ((_failing(sign, waived, past), sign) for sign, waived in present.items())
    elif past:
        yield from (
            (ChangeKind.FIXED if verdict is Verdict.CONFORMS else ChangeKind.NO_LONGER_EXERCISED, sign) for sign in past
        )
    elif (before.verdict(place) is Verdict.CONFORMS) == (verdict is Verdict.CONFORMS):
        yield ChangeKind.UNCHANGED, NO_CASE
    else:
        yield ChangeKind.NEWLY_EXERCISED if verdict is Verdict.CONFORMS else ChangeKind.NO_LONGER_EXERCISED, NO_CASE


def _failing(signature: str, waived: bool, past: dict[str, bool]) -> ChangeKind:
    """Return the kind of change for a failure, given the earlier failures of its place."""
    if waived:
        return ChangeKind.STILL_WAIVED if past.get(signature) else ChangeKind.NEWLY_WAIVED
    if not past:
        return ChangeKind.NEWLY_VIOLATED
    if signature == NO_CASE or signature not in past:
        return ChangeKind.FAILS_DIFFERENTLY
    return ChangeKind.WAIVER_REMOVED if past[signature] else ChangeKind.STILL_VIOLATED


def _change(kind: ChangeKind, signature: str, before: Mapping[Place, _Run], now: _Run) -> Change:
    """Return one change. `before`: its places, each with the run that it is compared with."""
    requirement = next(iter(before))[0]
    old = [(run.column, case) for place, run in before.items() for case in _cases(run, place, signature)]
    new = [(now.column, case) for place in before for case in _cases(now, place, signature)]
    of, case = next(iter(new or old), (now.column, None))
    titles = (run.titles.get(requirement, "") for run in (now, *before.values()))
    return Change(
        kind=kind,
        column=now.column,
        requirement=requirement,
        title=next((title for title in titles if title), ""),
        signature=signature,
        transitions=_transitions(before, now),
        requests=sum(now.rows[place].requests for place in before if place in now.rows),
        case=case,
        of=of,
        cases_before=[case.id for _, case in old],
        cases_now=[case.id for _, case in new],
        gone=sorted({sign for place, run in before.items() for sign in _gone(place, run, now)}),
        elsewhere=_elsewhere(before, signature),
    )


def _cases(run: _Run, place: Place, signature: str) -> Iterable[Case]:
    return run.cases.get(place, {}).get(signature, [])


def _transitions(before: Mapping[Place, _Run], now: _Run) -> list[Transition]:
    ways: dict[tuple[str, Verdict | None, Verdict | None, str], list[str]] = defaultdict(list)
    for place, run in before.items():
        verdict = now.verdict(place)
        why = "" if verdict is None or verdict in _JUDGED else now.rows[place].reason
        ways[run.column.label, run.verdict(place), verdict, why].append(place[1])
    return [Transition(*way, cells) for way, cells in ways.items()]


def _gone(place: Place, before: _Run, now: _Run) -> set[str]:
    """Return earlier failures of a place that now fails only in other ways. The new failure may hide them."""
    present = now.failures(place).keys()
    return before.failures(place).keys() - present - {NO_CASE} if present else set()


def _elsewhere(before: Mapping[Place, _Run], signature: str) -> list[str]:
    """Return the other cells in which the earlier runs of these places had the same failure."""
    if signature == NO_CASE:
        return []
    requirement = next(iter(before))[0]
    others = {
        (place, run.column.label): run for run in before.values() for place in run.rows if place[0] == requirement
    }
    return sorted(
        {place[1] for (place, _), run in others.items() if place not in before and signature in run.failures(place)}
    )
