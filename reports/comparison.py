"""Two runs in, what became of each requirement in each cell out: a pure function of both results.

Invariant: what is not exercised any more is never called fixed. A failure is the same one where requirement and
signature are the same: ids, nonces and the order of things are a run's own.
"""

from __future__ import annotations

import enum
from collections import defaultdict
from collections.abc import Iterable, Iterator

import msgspec

from reports import overview
from reports.comparability import Fact, doubts, facts
from reports.pace import Slower, slower
from reports.schema import Case, Results, Verdict

Place = tuple[str, str]  # requirement, cell
NO_CASE = ""  # the signature of a violation without a saved case: not known to be the same as any other


class Kind(enum.StrEnum):
    """What became of a requirement in a cell, what needs a hand first."""

    NEWLY_VIOLATED = "newly violated"
    OTHERWISE = "fails otherwise than before"
    NO_LONGER_EXERCISED = "no longer exercised"
    WAIVER_GONE = "waiver gone"
    STILL_THERE = "still there"
    NEWLY_WAIVED = "newly waived"
    STILL_WAIVED = "still waived"
    FIXED = "fixed"
    NEWLY_EXERCISED = "newly exercised"
    UNCHANGED = "unchanged"


MEANING = {
    Kind.NEWLY_VIOLATED: "Violated now, and not known to fail before.",
    Kind.OTHERWISE: "Failed before, and fails now with a signature that was not among the earlier ones.",
    Kind.NO_LONGER_EXERCISED: "Decided before, and now not: whatever failed there is not shown to be fixed.",
    Kind.WAIVER_GONE: "The same failure as before, which was a known issue and is none any more.",
    Kind.STILL_THERE: "Violated in both, the same as before by its signature.",
    Kind.NEWLY_WAIVED: "Fails now as a known issue, and did not before.",
    Kind.STILL_WAIVED: "The same known issue in both.",
    Kind.FIXED: "Failed before, and conforms now with its evidence shown.",
    Kind.NEWLY_EXERCISED: "Conforms now, and nothing was decided before.",
    Kind.UNCHANGED: "Conforms in both, or was not decided in either.",
}

NEW = (Kind.NEWLY_VIOLATED, Kind.OTHERWISE, Kind.NO_LONGER_EXERCISED)
_FAILS = (Verdict.VIOLATED, Verdict.KNOWN_ISSUE)


class Journey(msgspec.Struct, frozen=True, kw_only=True):
    """Cells in which a finding went the same way. None: the run did not have the requirement in that cell."""

    was: Verdict | None
    now: Verdict | None
    reason: str  # why nothing is decided now
    cells: list[str]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one requirement, or of one failure of it by its signature, in however many cells."""

    kind: Kind
    requirement: str
    title: str
    signature: str
    journeys: list[Journey]
    requests: int  # of the later run in these cells
    cases_before: list[str]
    cases_now: list[str]
    gone: list[str]  # signatures that these cells had before and have no more, though they fail: not called fixed
    elsewhere: list[str]  # other cells in which the earlier run failed with the same signature
    case: Case | None  # one to show: of the later run where it fails there, else of the earlier

    @property
    def unsaved(self) -> bool:
        """Whether something fails or failed here of which neither run has a case."""
        verdicts = {verdict for journey in self.journeys for verdict in (journey.was, journey.now)}
        return self.case is None and not verdicts.isdisjoint(_FAILS)


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """All there is to say of two runs."""

    facts: list[Fact]
    doubts: list[str]
    findings: list[Finding]
    slower: list[Slower]


class _Side:
    """One run, looked up by place. An invalid run has no verdict that counts, and so no place."""

    def __init__(self, results: Results) -> None:
        valid = [] if overview.missed(results) else results.requirements
        self.titles = {requirement.id: requirement.title for requirement in valid}
        self.rows = {(requirement.id, row.cell): row for requirement in valid for row in overview.rows(requirement)}
        self.cases: dict[Place, dict[str, list[Case]]] = {}
        for case in sorted(results.cases, key=lambda case: (case.known_issue is not None, case.id, case.sentence)):
            by_signature = self.cases.setdefault((case.requirement, case.cell), {})
            by_signature.setdefault(case.signature, []).append(case)

    def verdict(self, place: Place) -> Verdict | None:
        """None: not in this run."""
        return self.rows[place].verdict if place in self.rows else None

    def failures(self, place: Place) -> dict[str, bool]:
        """The signatures of what failed in a place, and whether each is waived."""
        verdict = self.verdict(place)
        if verdict not in _FAILS:
            return {}
        cases = self.cases.get(place, {})
        if verdict is Verdict.KNOWN_ISSUE:
            return dict.fromkeys(cases, True) or {NO_CASE: True}
        waived = {sign: all(case.known_issue is not None for case in same) for sign, same in cases.items()}
        return waived if False in waived.values() else {**waived, NO_CASE: False}  # a violation is never lost


def compare(old: Results, new: Results) -> Comparison:
    """What became of `old` in `new`. Reads nothing but these two, and no order in them means anything."""
    before, now = _Side(old), _Side(new)
    grouped: dict[tuple[Kind, str, str], list[str]] = defaultdict(list)
    for place in sorted(before.rows.keys() | now.rows.keys()):
        for kind, signature in _changes(place, before, now):
            grouped[kind, place[0], signature].append(place[1])
    findings = [_finding(*key, cells, before, now) for key, cells in grouped.items()]
    return Comparison(
        facts=facts(old, new),
        doubts=doubts(old, new),
        findings=sorted(findings, key=lambda one: (list(Kind).index(one.kind), one.requirement, one.signature)),
        slower=slower(old, new),
    )


def exit_code(comparison: Comparison) -> int:
    """1 where something is new, and where nothing was compared; else 0. Doubts and times are no failure."""
    return int(not comparison.findings or any(finding.kind in NEW for finding in comparison.findings))


def headline(comparison: Comparison) -> str:
    """The comparison in one sentence that a person can quote."""
    kinds = [finding.kind for finding in comparison.findings]
    if not kinds:
        return "NOTHING COMPARED — neither run has a verdict that counts"
    if Kind.NEWLY_VIOLATED in kinds or Kind.OTHERWISE in kinds:
        word = "SOMETHING NEW"
    elif Kind.NO_LONGER_EXERCISED in kinds:
        word = "LESS SHOWN THAN BEFORE"
    else:
        word = "NOTHING NEW"
    return f"{word} — " + ", ".join(f"{count} {kind.value}" for kind, count in counts(comparison) if count)


def counts(comparison: Comparison) -> list[tuple[Kind, int]]:
    """How many findings of each kind, zeros included."""
    kinds = [finding.kind for finding in comparison.findings]
    return [(kind, kinds.count(kind)) for kind in Kind]


def of_kind(comparison: Comparison, kind: Kind) -> list[Finding]:
    """The findings of one kind, by requirement and signature."""
    return [finding for finding in comparison.findings if finding.kind is kind]


def _changes(place: Place, before: _Side, now: _Side) -> Iterator[tuple[Kind, str]]:
    """What became of a place: a kind for each failure, or one where nothing fails and nothing failed."""
    past, present, verdict = before.failures(place), now.failures(place), now.verdict(place)
    if present:
        yield from ((_failing(sign, waived, past), sign) for sign, waived in present.items())
    elif past:
        yield from ((Kind.FIXED if verdict is Verdict.CONFORMS else Kind.NO_LONGER_EXERCISED, sign) for sign in past)
    elif (before.verdict(place) is Verdict.CONFORMS) == (verdict is Verdict.CONFORMS):
        yield Kind.UNCHANGED, NO_CASE
    else:
        yield Kind.NEWLY_EXERCISED if verdict is Verdict.CONFORMS else Kind.NO_LONGER_EXERCISED, NO_CASE


def _failing(signature: str, waived: bool, past: dict[str, bool]) -> Kind:
    """What a failure is to those that its place had before."""
    if waived:
        return Kind.STILL_WAIVED if past.get(signature) else Kind.NEWLY_WAIVED
    if not past:
        return Kind.NEWLY_VIOLATED
    if signature == NO_CASE or signature not in past:
        return Kind.OTHERWISE
    return Kind.WAIVER_GONE if past[signature] else Kind.STILL_THERE


def _finding(kind: Kind, requirement: str, signature: str, cells: list[str], before: _Side, now: _Side) -> Finding:
    places = [(requirement, cell) for cell in cells]
    old, new = _cases(before, places, signature), _cases(now, places, signature)
    return Finding(
        kind=kind,
        requirement=requirement,
        title=now.titles.get(requirement, before.titles.get(requirement, "")),
        signature=signature,
        journeys=_journeys(places, before, now),
        requests=sum(now.rows[place].requests for place in places if place in now.rows),
        case=next(iter(new or old), None),
        cases_before=[case.id for case in old],
        cases_now=[case.id for case in new],
        gone=sorted({sign for place in places for sign in _gone(place, before, now)}),
        elsewhere=_elsewhere(places, signature, before),
    )


def _cases(side: _Side, places: Iterable[Place], signature: str) -> list[Case]:
    return [case for place in places for case in side.cases.get(place, {}).get(signature, [])]


def _journeys(places: list[Place], before: _Side, now: _Side) -> list[Journey]:
    ways: dict[tuple[Verdict | None, Verdict | None, str], list[str]] = defaultdict(list)
    for place in places:
        verdict = now.verdict(place)
        decided = verdict is None or verdict is Verdict.CONFORMS or verdict in _FAILS
        ways[before.verdict(place), verdict, "" if decided else now.rows[place].reason].append(place[1])
    return [Journey(was=was, now=is_now, reason=why, cells=cells) for (was, is_now, why), cells in ways.items()]


def _gone(place: Place, before: _Side, now: _Side) -> set[str]:
    """Earlier failures of a place that still fails, but not so: the one may hide the other."""
    present = now.failures(place).keys()
    return before.failures(place).keys() - present - {NO_CASE} if present else set()


def _elsewhere(places: list[Place], signature: str, before: _Side) -> list[str]:
    """Where else the earlier run saw the same failure."""
    if signature == NO_CASE:
        return []
    others = (place for place in before.rows if place[0] == places[0][0] and place not in places)
    return sorted(place[1] for place in others if signature in before.failures(place))
