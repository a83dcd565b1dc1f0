"""Compares two runs: how each requirement changed in each cell. A pure function of both results.

Invariant: a requirement that is no longer exercised is never called fixed. Two failures are the same if requirement and
signature are equal. Case ids, nonces and the order of results differ from run to run and are ignored.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from coldproof.reports.comparison.slowdowns import Slowdown, slowdowns
from coldproof.reports.schema.case import Case
from coldproof.reports.schema.results import Results
from coldproof.reports.schema.verdict import Verdict
from coldproof.reports.views import overview
from coldproof.reports.views.run_facts import comparability_warnings, facts

Place = tuple[str, str]  # requirement, cell
NO_CASE = ""  # the signature of a violation without a saved case; it never equals another failure


class ChangeKind(enum.StrEnum):
    """How a requirement changed in a cell. The most urgent kinds come first."""

    NEWLY_VIOLATED = "newly violated"
    FAILS_DIFFERENTLY = "fails in a different way"
    NO_LONGER_EXERCISED = "no longer exercised"
    WAIVER_REMOVED = "waiver removed"
    STILL_VIOLATED = "still violated"
    NEWLY_WAIVED = "newly waived"
    STILL_WAIVED = "still waived"
    FIXED = "fixed"
    NEWLY_EXERCISED = "newly exercised"
    UNCHANGED = "unchanged"


MEANING = {
    ChangeKind.NEWLY_VIOLATED: "Violated now; did not fail before.",
    ChangeKind.FAILS_DIFFERENTLY: "Failed before, and fails now with a new signature.",
    ChangeKind.NO_LONGER_EXERCISED: "Had a verdict before, has none now. Earlier failures are not shown to be fixed.",
    ChangeKind.WAIVER_REMOVED: "The same failure as before; it was waived as a known issue and is not waived now.",
    ChangeKind.STILL_VIOLATED: "Violated in both runs, with the same signature.",
    ChangeKind.NEWLY_WAIVED: "Waived as a known issue now, and not before.",
    ChangeKind.STILL_WAIVED: "The same known issue in both runs.",
    ChangeKind.FIXED: "Failed before, and conforms now with the required evidence.",
    ChangeKind.NEWLY_EXERCISED: "Conforms now, and had no verdict before.",
    ChangeKind.UNCHANGED: "Conforms in both runs, or has no verdict in either.",
}

NEW = (ChangeKind.NEWLY_VIOLATED, ChangeKind.FAILS_DIFFERENTLY, ChangeKind.NO_LONGER_EXERCISED)
_FAILS = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE)


class Transition(msgspec.Struct, frozen=True, kw_only=True):
    """Cells with the same change from one verdict to another. None: the run has no such requirement and cell."""

    was: Verdict | None
    now: Verdict | None
    reason: str  # why there is no verdict now
    cells: list[str]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """How one requirement changed, or one failure of it (by signature), in all cells with this change."""

    kind: ChangeKind
    requirement: str
    title: str
    signature: str
    transitions: list[Transition]
    requests: int  # requests of the later run in these cells
    cases_before: list[str]
    cases_now: list[str]
    gone: list[str]  # earlier signatures that did not occur now, in cells that still fail; not called fixed
    elsewhere: list[str]  # other cells in which the earlier run failed with the same signature
    case: Case | None  # an example: of the later run if it fails there, else of the earlier run

    @property
    def unsaved(self) -> bool:
        """Whether there is a failure without a saved case in either run."""
        verdicts = {verdict for transition in self.transitions for verdict in (transition.was, transition.now)}
        return self.case is None and not verdicts.isdisjoint(_FAILS)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """The result of comparing two runs."""

    facts: list[tuple[str, list[str]]]  # each property with its values before and now
    warnings: list[str]
    findings: list[Finding]
    slowdowns: list[Slowdown]


class _Side:
    """One run, indexed by place. An invalid run has no valid verdicts and so no places."""

    def __init__(self, results: Results) -> None:
        valid = [] if overview.failed_selftests(results) else results.requirements
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

    def failures(self, place: Place) -> dict[str, bool]:
        """Return the signatures of the failures in a place, and whether each is waived."""
        verdict = self.verdict(place)
        if verdict not in _FAILS:
            return {}
        cases = self.cases.get(place, {})
        if verdict is Verdict.KNOWN_ISSUE:
            return dict.fromkeys(cases, True) or {NO_CASE: True}
        waived = {sign: all(case.known_issue is not None for case in same) for sign, same in cases.items()}
        return waived if False in waived.values() else {**waived, NO_CASE: False}  # a violation is never lost


def compare(old: Results, new: Results) -> Comparison:
    """Compare two runs. The order of results and cases in them does not matter."""
    before, now = _Side(old), _Side(new)
    grouped: dict[tuple[ChangeKind, str, str], list[str]] = defaultdict(list)
    for place in sorted(before.rows.keys() | now.rows.keys()):
        for kind, signature in _changes(place, before, now):
            grouped[kind, place[0], signature].append(place[1])
    findings = [_finding(*key, cells, before, now) for key, cells in grouped.items()]
    return Comparison(
        facts=facts([old, new]),
        warnings=comparability_warnings(old, new),
        findings=sorted(findings, key=lambda one: (list(ChangeKind).index(one.kind), one.requirement, one.signature)),
        slowdowns=slowdowns(old, new),
    )


def exit_code(comparison: Comparison) -> int:
    """Return 1 if something is new or nothing was compared, else 0. Warnings and slowdowns are not failures."""
    return int(not comparison.findings or any(finding.kind in NEW for finding in comparison.findings))


def headline(comparison: Comparison) -> str:
    """Return the comparison in one sentence that can be quoted."""
    kinds = [finding.kind for finding in comparison.findings]
    if not kinds:
        return "NOTHING COMPARED — neither run has a valid verdict"
    if ChangeKind.NEWLY_VIOLATED in kinds or ChangeKind.FAILS_DIFFERENTLY in kinds:
        word = "NEW FAILURES"
    elif ChangeKind.NO_LONGER_EXERCISED in kinds:
        word = "LESS EXERCISED THAN BEFORE"
    else:
        word = "NO NEW FAILURES"
    return f"{word} — " + ", ".join(f"{count} {kind.value}" for kind, count in counts(comparison) if count)


def counts(comparison: Comparison) -> list[tuple[ChangeKind, int]]:
    """Return the number of findings of each kind, zeros included."""
    kinds = [finding.kind for finding in comparison.findings]
    return [(kind, kinds.count(kind)) for kind in ChangeKind]


def of_kind(comparison: Comparison, kind: ChangeKind) -> list[Finding]:
    """Return the findings of one kind, sorted by requirement and signature."""
    return [finding for finding in comparison.findings if finding.kind is kind]


def _changes(place: Place, before: _Side, now: _Side) -> Iterator[tuple[ChangeKind, str]]:
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


def _finding(
    kind: ChangeKind, requirement: str, signature: str, cells: list[str], before: _Side, now: _Side
) -> Finding:
    places = [(requirement, cell) for cell in cells]
    old, new = _cases(before, places, signature), _cases(now, places, signature)
    return Finding(
        kind=kind,
        requirement=requirement,
        title=now.titles.get(requirement, before.titles.get(requirement, "")),
        signature=signature,
        transitions=_transitions(places, before, now),
        requests=sum(now.rows[place].requests for place in places if place in now.rows),
        case=next(iter(new or old), None),
        cases_before=[case.id for case in old],
        cases_now=[case.id for case in new],
        gone=sorted({sign for place in places for sign in _gone(place, before, now)}),
        elsewhere=_elsewhere(places, signature, before),
    )


def _cases(side: _Side, places: Iterable[Place], signature: str) -> list[Case]:
    return [case for place in places for case in side.cases.get(place, {}).get(signature, [])]


def _transitions(places: list[Place], before: _Side, now: _Side) -> list[Transition]:
    ways: dict[tuple[Verdict | None, Verdict | None, str], list[str]] = defaultdict(list)
    for place in places:
        verdict = now.verdict(place)
        decided = verdict is None or verdict is Verdict.CONFORMS or verdict in _FAILS
        ways[before.verdict(place), verdict, "" if decided else now.rows[place].reason].append(place[1])
    return [Transition(was=was, now=is_now, reason=why, cells=cells) for (was, is_now, why), cells in ways.items()]


def _gone(place: Place, before: _Side, now: _Side) -> set[str]:
    """Return earlier failures of a place that now fails only in other ways. The new failure may hide them."""
    present = now.failures(place).keys()
    return before.failures(place).keys() - present - {NO_CASE} if present else set()


def _elsewhere(places: list[Place], signature: str, before: _Side) -> list[str]:
    """Return the other cells in which the earlier run had the same failure."""
    if signature == NO_CASE:
        return []
    others = (place for place in before.rows if place[0] == places[0][0] and place not in places)
    return sorted(place[1] for place in others if signature in before.failures(place))
