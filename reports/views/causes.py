"""The causes of a run's violations, worst first: a line for each, which page, summary and terminal share.

A cause is a finding that Coldproof knows, or else what the controls of its counterexamples point at, or else whose KV
they read, or else what they have in common. Invariant: every case belongs to exactly one cause, and new ones come
before known ones.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence

from coldproof.harness.schema.attribution import Basis
from coldproof.harness.schema.case import Case
from coldproof.harness.schema.findings import FindingFacts, FindingReplay, ReplayResult, Severity
from coldproof.harness.schema.results import RequirementResult, Results, Waiver
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.reports.assemble.finding_cases import finding_of_cases
from coldproof.reports.format.text import many, web_link
from coldproof.reports.views.cause_view import CauseView, State
from coldproof.reports.views.mix_ups import is_foreign, mix_up

# The controls' conclusion that says where a fault is not: it does not tell one fault from another.
ELSEWHERE = "a cause outside of the prefix cache"
LAYERS = ("exact", "model", "server")
_BY_CLASS = {
    FailureClass.STALE_STATE: Severity.FOREIGN_DATA,
    FailureClass.CROSS_REQUEST: Severity.FOREIGN_DATA,
    FailureClass.CORRUPT: Severity.WRONG_ANSWER,
    FailureClass.NOT_THE_CACHE: Severity.WRONG_ANSWER,
    FailureClass.CRASH: Severity.CRASH_OR_HANG,
    FailureClass.HANG: Severity.CRASH_OR_HANG,
    FailureClass.LOST_REUSE: Severity.LOST_REUSE,
    FailureClass.ACCOUNTING: Severity.WRONG_COUNT,
    FailureClass.API: Severity.API,
}
_ORDER = tuple(Severity)
FEW_UNCONFIRMED = 2


def cause_views(results: Results) -> list[CauseView]:
    """Return all causes: new ones first, in each part the worst first, then those that broke most."""
    facts = {one.id: one for one in results.records}
    findings = _shown_findings(results, facts)
    groups: dict[tuple[str, str], list[Case]] = defaultdict(list)
    pointed = pointed_at(results.cases, findings)
    for case in results.cases:
        group = group_of(case, findings)
        groups[pointed.get(group, group)].append(case)
    parts = [part for cases in groups.values() for part in _by_confirmation(cases)]
    views = [_of_cases(results, cases, findings.get(cases[0].id, ""), facts) for cases in parts]
    views += _as_shipped(results, {view.finding for view in views}, facts)
    views += _without_case(results, views)
    return sorted(views, key=_rank)


def listed(causes: Sequence[CauseView]) -> tuple[list[CauseView], list[CauseView]]:
    """Return the causes that have a line of their own, and the others: failures that no replay has shown again.

    Before its proofs, one fault gives many of these, and they cannot be told apart. A few of them are listed.
    """
    unconfirmed = [view for view in causes if not view.is_confirmed]
    if len(unconfirmed) <= FEW_UNCONFIRMED:
        return list(causes), []
    return [view for view in causes if view.is_confirmed], unconfirmed


def unconfirmed_words(causes: Sequence[CauseView]) -> str:
    """Return how many failures no replay has shown again, and of which requirements."""
    return f"{many(len(causes), 'failure')} that no replay has shown again: {requirements_of(causes)}"


def requirements_of(causes: Iterable[CauseView]) -> str:
    """Return the requirements of several causes, as text."""
    return ", ".join(sorted({name for view in causes for name in view.requirements}))


def group_of(case: Case, findings: dict[str, str]) -> tuple[str, str]:
    """Return what a case has in common with the other cases of its cause."""
    if case.id in findings:
        return "finding", findings[case.id]
    if case.known_issue is not None:
        return "waiver", case.known_issue
    pointed = case.diagnosis.mechanism if case.diagnosis is not None else ""
    if pointed and pointed != ELSEWHERE:
        return "mechanism", pointed
    mixed = mix_up(case)
    return ("mix-up", mixed) if mixed else ("signature", case.signature)


def pointed_at(cases: Iterable[Case], findings: dict[str, str]) -> dict[tuple[str, str], tuple[str, str]]:
    """Return at what the controls of cases point that read the same foreign KV as those of a group without controls.

    Nothing for a group of which the controls say several things, or whose cases have in common only that the KV was for
    other tokens: it may be several faults.
    """
    said: dict[tuple[str, str], set[tuple[str, str]]] = defaultdict(set)
    for case in cases:
        group, mixed = group_of(case, findings), mix_up(case)
        if group[0] == "mechanism" and case.failure_class is FailureClass.STALE_STATE and mixed:
            said["mix-up", mixed].add(group)
    return {group: next(iter(groups)) for group, groups in said.items() if len(groups) == 1}


def severity_of(case: Case) -> Severity:
    """Return the severity of a case by its failure class, or by whose KV was read. A request that got an error is no
    wrong answer.
    """
    if is_foreign(case):
        return Severity.FOREIGN_DATA
    failing = next((row for row in case.requests if row.request == case.failing_request), None)
    if case.failure_class is FailureClass.NOT_THE_CACHE and failing is not None and failing.error:
        return Severity.CRASH_OR_HANG
    return _BY_CLASS[case.failure_class]


def best_first(cases: Iterable[Case]) -> list[Case]:
    """Return the cases, first those that failed again on a fresh engine, have controls, and are small."""

    def rank(case: Case) -> tuple[bool, bool, bool, int, str]:
        again = case.reproduction
        return (
            bool(case.undecided),
            not again.fresh_failed,
            case.diagnosis is None,
            len(case.requests),
            case.id,
        )

    return sorted(cases, key=rank)


def title_of(case: Case) -> str:
    """Return the name of a new cause: what the controls of its best case point at, else whose KV was read, or else what
    happened.
    """
    pointed = case.diagnosis.mechanism if case.diagnosis is not None else ""
    return f"{pointed[:1].upper()}{pointed[1:]}" if pointed and pointed != ELSEWHERE else mix_up(case) or case.sentence


def _of_cases(results: Results, cases: list[Case], finding: str, facts: dict[str, FindingFacts]) -> CauseView:
    ordered = best_first(cases)
    known, waiver = facts.get(finding), _waiver_of(results.waivers, ordered)
    waived = sum(case.known_issue is not None for case in cases)
    state = State.KNOWN if finding else State.NEW
    if all(case.is_remark for case in cases):
        state = State.REMARK
    elif waived + sum(case.is_remark for case in cases) == len(cases):
        state = State.WAIVED
    elif not any(map(_counts, cases)):
        state = State.UNCONFIRMED
    elif (known and known.fixed) or finding in _back(results):
        state = State.REGRESSION
    elif all(case.may_be_known for case in filter(_counts, cases)):
        state = State.UNDECIDED
    return CauseView(
        title=known.title if known else _title_without_facts(ordered[0], finding, waiver),
        severity=known.severity if known else min(map(severity_of, cases), key=_ORDER.index),
        state=state,
        finding=finding,
        requirements=sorted({case.requirement for case in cases}),
        layers=_layers(case.layer for case in cases),
        places=sorted({case.place for case in cases}),
        releases=known.releases if known else waiver.versions if waiver else "",
        link=_link(known, waiver) or _attributed_link(ordered),
        repair=known.repair if known else None,
        waived=waived,
        cases=ordered,
    )


def _by_confirmation(cases: list[Case]) -> list[list[Case]]:
    """Return the cases of one cause, and apart from them those of requirements in which no replay has shown it."""
    shown = {case.requirement for case in cases if not _is_open(case)}
    apart = [case for case in cases if case.requirement not in shown]
    return [part for part in ([case for case in cases if case.requirement in shown], apart) if part]


def _is_accepted(case: Case) -> bool:
    """Return whether a case shows a remark, or a known issue waives it."""
    return case.is_remark or case.known_issue is not None


def _is_open(case: Case) -> bool:
    """Return whether nothing is known of a case but that it was seen: it breaks no requirement."""
    return bool(case.undecided) and not _is_accepted(case)


def _counts(case: Case) -> bool:
    """Return whether a case makes its requirement violated."""
    return not case.undecided and not _is_accepted(case)


def _back(results: Results) -> set[str]:
    """Return the findings that are recorded as fixed in this release, and whose own cases fail."""
    return {one.finding for one in results.findings if one.regression}


def _shown_findings(results: Results, facts: dict[str, FindingFacts]) -> dict[str, str]:
    """Return the findings to which cases belong, by the ids of the cases.

    Of one signature are many causes: that a fixed one is back, its own case shows, or its repair.
    """
    back, found = _back(results), finding_of_cases(results)
    for case in results.cases:
        known = facts.get(found.get(case.id, ""))
        alike = case.attribution is not None and case.attribution.basis is Basis.SIGNATURE
        if known is not None and known.fixed and alike and known.id not in back:
            del found[case.id]
    return found


def _as_shipped(results: Results, told: set[str], facts: dict[str, FindingFacts]) -> list[CauseView]:
    """Return the findings that the engine has, and of which the run has no case of its own."""
    seen: dict[str, list[FindingReplay]] = defaultdict(list)
    for one in results.findings:
        if one.result is ReplayResult.FAILS and not one.repaired and one.finding not in told:
            seen[one.finding].append(one)
    return [_replayed(results, finding, replays, facts.get(finding)) for finding, replays in seen.items()]


def _replayed(results: Results, finding: str, replays: list[FindingReplay], known: FindingFacts | None) -> CauseView:
    waiver = next((one for one in results.waivers if one.finding == finding), None)
    state = State.WAIVED if waiver is not None else State.KNOWN
    if any(finding in one.remarks for one in results.requirements):
        state = State.REMARK
    return CauseView(
        title=known.title if known else _in_words(finding),
        severity=known.severity if known else Severity.WRONG_ANSWER,
        state=State.REGRESSION if any(one.regression for one in replays) else state,
        finding=finding,
        requirements=sorted({one.requirement for one in replays}),
        layers=_layers(one.layer for one in replays),
        places=sorted({one.cell for one in replays}),
        releases=known.releases if known else waiver.versions if waiver else "",
        link=_link(known, waiver),
        repair=known.repair if known else None,
        waived=0,
        cases=[],
    )


def _without_case(results: Results, views: Sequence[CauseView]) -> list[CauseView]:
    """Return a cause for each violated requirement that none of the causes broke, so that none is left out."""
    told = {name for view in views if view.breaks for name in view.requirements}
    return [_unexplained(one) for one in results.requirements if one.verdict is Verdict.VIOLATED and one.id not in told]


def _unexplained(requirement: RequirementResult) -> CauseView:
    return CauseView(
        title=requirement.reason or "violated, without a reason",
        severity=Severity.WRONG_ANSWER,
        state=State.NEW,
        finding="",
        requirements=[requirement.id],
        layers=_layers(one.layer for one in requirement.layers if one.verdict is Verdict.VIOLATED),
        places=[one.label for one in requirement.cells if one.verdict is Verdict.VIOLATED],
        releases="",
        link="",
        repair=None,
        waived=0,
        cases=[],
    )


def _rank(view: CauseView) -> tuple[int, int, bool, int, int, str]:
    states = tuple(State)  # what may be new, or is back, is ranked together
    state = max(states.index(State.UNDECIDED), states.index(view.state))
    # What controls point at comes before what has none, which may be more of it.
    bare = not view.finding and view.best is not None and view.best.diagnosis is None
    return state, _ORDER.index(view.severity), bare, -len(view.requirements), -len(view.cases), view.title


def _title_without_facts(case: Case, finding: str, waiver: Waiver | None) -> str:
    if finding:
        return _in_words(finding)
    return waiver.reason if waiver is not None and case.known_issue is not None else title_of(case)


def _in_words(finding: str) -> str:
    """Return the name of a finding as words, for one whose record the results do not have."""
    return finding.rpartition("/")[2].replace("-", " ")


def _waiver_of(waivers: Iterable[Waiver], cases: Sequence[Case]) -> Waiver | None:
    ids = {case.id for case in cases}
    return next((one for one in waivers if ids & set(one.cases)), None)


def _link(known: FindingFacts | None, waiver: Waiver | None) -> str:
    addresses = [*(known.upstream if known else ()), *([waiver.link] if waiver else ())]
    return next(filter(None, map(web_link, addresses)), "")


def _attributed_link(cases: Sequence[Case]) -> str:
    return next((web_link(one.attribution.link) for one in cases if one.attribution is not None), "")


def _layers(names: Iterable[str]) -> list[str]:
    found = set(filter(None, names))
    return sorted(found, key=lambda name: (LAYERS.index(name) if name in LAYERS else len(LAYERS), name))
