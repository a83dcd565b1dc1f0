"""Checks whether a run's verdicts follow from its re-evaluated examples, with the functions that the run used."""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import chain

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.registry import CELLS
from coldproof.harness.case.known_issues import Waivers
from coldproof.harness.judgement.dropped_kind import DroppedKind
from coldproof.harness.judgement.finding import Rule
from coldproof.harness.judgement.requirement import Absent, absent_everywhere, capabilities_of, missing_everywhere
from coldproof.harness.judgement.verdict import verdict_as_replayed, verdict_of_case, verdict_without_counterexample
from coldproof.harness.options import UsageError
from coldproof.harness.release.bundle.check_attributions import check_attribution
from coldproof.harness.release.bundle.refusal import Reason, altered, left_out, not_accepted
from coldproof.harness.release.bundle.run_folder import OpenedEngine, Part, RejudgedTest
from coldproof.harness.release.requirements.frozen import Place
from coldproof.harness.schema.case import MOST_CASE, Case
from coldproof.harness.schema.cold_answers import ColdAnswers
from coldproof.harness.schema.results import Calibration, encode
from coldproof.harness.schema.stored_files import read_bytes
from coldproof.harness.schema.verdict import Verdict, worst
from coldproof.reports.assemble.assemble import Event
from coldproof.reports.format.text import is_file_name


def check_verdicts(part: Part) -> Iterator[Reason]:
    """Yield a reason for each verdict that does not follow, and for examples without a verdict."""
    cases, engines = part.cases(), part.engines()
    concluded = set()
    for place, verdict in part.verdicts():
        concluded.add(place)
        test = part.frozen.test(place)
        if test is None:
            continue  # check_coverage reports it
        seen = part.rejudged.get(place) or RejudgedTest(test, place.cell)
        yield from check_counts(place, verdict, seen)
        yield from check_verdict(part, place, verdict, seen, cases, engines.get(place.cell, []))
    for place in part.rejudged.keys() - concluded:
        yield altered(f"{place} has examples but no verdict")
    yield from check_rules(part)
    yield from check_case_files(part, cases)


def check_counts(place: Place, verdict: Event, seen: RejudgedTest) -> Iterator[Reason]:
    """Yield a reason for each count of a verdict that differs from the log, and for changed examples."""
    if seen.changed:
        yield altered(
            f"{place}: {seen.changed} of {seen.examples} examples have other results when re-evaluated; the first: "
            f"{seen.first_difference}"
        )
    for what, counted in (("examples", seen.examples), ("requests", seen.requests)):
        if (recorded := verdict[what]) != counted:
            yield altered(f"{place}: the verdict counts {recorded} {what}, the log has {counted}")
    if seen.examples and msgspec.convert(verdict["cold"], ColdAnswers) != seen.cold:
        yield altered(f"{place}: the verdict rests on other cold answers than its examples")
    evidence = seen.evidence
    for name in sorted(evidence.keys() | verdict["evidence"].keys()):
        recorded, counted = verdict["evidence"].get(name, 0.0), evidence[name]
        if not math.isclose(recorded, counted, rel_tol=1e-9, abs_tol=1e-9):
            yield altered(f"{place}: the verdict counts {recorded} of '{name}', the examples show {counted}")
            return


def check_verdict(
    part: Part, place: Place, verdict: Event, seen: RejudgedTest, cases: dict[str, Case], engines: list[OpenedEngine]
) -> Iterator[Reason]:
    """Yield a reason if one verdict does not follow from its examples, its case and the engine's capabilities."""
    given = Verdict(verdict["verdict"])
    if given is Verdict.ERROR:
        return  # nothing follows from an ERROR; check_outcome refuses it
    if given is Verdict.UNSUPPORTED:
        yield from check_unsupported(part, place, verdict, seen, engines)
        return
    if given is Verdict.CONFORMS and engines and all(engine.lacks(seen.requirement.needs) for engine in engines):
        lacks = "; ".join(map(str, engines[0].lacks(seen.requirement.needs)))
        yield altered(f"{place} CONFORMS, but the engine lacks what it needs: {lacks}")
    if found := [one for one in verdict["missing"] if seen.evidence[one]]:
        yield altered(f"{place} is {given} with missing evidence: {', '.join(found)}; but its examples show it")
    known = [cases[name] for name in verdict["known"] if name in cases]
    if verdict["case"] is not None and verdict["case"] not in verdict["known"]:
        yield from check_case(part, place, verdict, seen, cases)
        yield from check_further(part, place, verdict, cases)
    elif seen.failing and not known:
        yield altered(f"{place} is {given}, but {seen.failing} of its examples fail")
    else:
        yield from check_without_counterexample(part, place, verdict, seen, known, cases, engines)


def check_unsupported(
    part: Part, place: Place, verdict: Event, seen: RejudgedTest, engines: list[OpenedEngine]
) -> Iterator[Reason]:
    """Yield a reason if UNSUPPORTED does not follow from what the engine of the cell reported and the run had.

    A cell that was not opened is UNSUPPORTED for what other cells have shown to be absent from all of them.
    """
    if seen.examples:
        yield altered(f"{place} is UNSUPPORTED but has {seen.examples} examples")
    needs = seen.requirement.needs
    if engines:
        possible = [engine.lacks(needs) for engine in engines]
    else:
        possible = [
            missing_everywhere(absent_everywhere(e.engine.capabilities), needs) for e in chain(*part.engines().values())
        ]
    if not possible:
        yield left_out(f"{place} is UNSUPPORTED, but no engine reported its capabilities")
    elif not any(possible):
        unopened = "its cell was not opened, and no other shows that the engine lacks what it needs in all cells"
        yield altered(f"{place} is UNSUPPORTED, but {'the engine has all that it needs' if engines else unopened}")
    elif [*(absent := verdict["absent"])] not in [capabilities_of(lacks) for lacks in possible]:
        named = ", ".join(absent) or "nothing"
        yield altered(f"{place} is UNSUPPORTED for lack of {named}; from the engine follows: {texts(possible)}")


def texts(possible: list[list[Absent]]) -> str:
    """Return what engines lack, as text."""
    return " or ".join(dict.fromkeys("; ".join(map(str, lacks)) for lacks in possible if lacks))


def check_without_counterexample(
    part: Part,
    place: Place,
    verdict: Event,
    seen: RejudgedTest,
    known: list[Case],
    cases: dict[str, Case],
    engines: list[OpenedEngine],
) -> Iterator[Reason]:
    """Yield a reason if the verdict of a trial without a counterexample does not follow.

    `known`: the cases of its replayed findings.
    """
    given = Verdict(verdict["verdict"])
    for name in verdict["known"]:
        if name not in cases:
            yield left_out(f"{place} is {given} because of case {name}, which is missing")
    for case in known:
        if (case.requirement, case.cell) != (place.requirement, place.cell):
            yield altered(f"{place} is {given} with case {case.id}, which is about {case.requirement} in {case.cell}")
        if case.known_issue is None and not case.is_remark:
            yield altered(f"{place} is {given} with case {case.id}, which no known issue waives and which is no remark")
        yield from check_waiver(part, place, verdict, case)
    if known and seen.failing < 1:
        yield altered(
            f"{place} has the case {known[0].id} of a finding, but none of its {seen.examples} examples fails"
        )
    seen.requirement = seen.requirement.on(common_capabilities(engines))
    seen.known = known
    seen.looked_behind, seen.not_behind = verdict["looked_behind"], verdict["not_behind"]  # on trust, as all replays
    try:
        waivers: Waivers = part.waivers(verdict)
        with_rare, accepted = waivers.with_rare, map(waivers.waive, (one for one in known if one.is_remark))
        seen.accepted_remarks = [str(issue) for issue in accepted if issue is not None]
    except UsageError as problem:
        yield altered(f"{place}: {problem}")
        return
    ended = cases.get(verdict["ended"] or "")
    follows = {}
    # Whether the time was over, when the kinds of requests that were not sent do not count, is not recorded.
    for narrowed in ([], dropped_kinds(part, verdict)):
        seen.narrowed = narrowed
        found, why = verdict_without_counterexample(seen, None, ended=ended, with_rare=with_rare)
        follows[found] = why
    if given not in follows:
        found, why = next(iter(follows.items()))
        yield altered(f"{place} is {given}; from its examples follows {found}: {why}")


def dropped_kinds(part: Part, verdict: Event) -> list[DroppedKind]:
    """Return the kinds of requests that a trial did not send, of those that the run stopped sending."""
    dropped = [msgspec.convert(event["dropped"], DroppedKind) for event in part.all("kind_dropped")]
    latest = {one.kind: one for one in dropped if one.kind in verdict["narrowed"]}
    return list(latest.values())


def check_case(
    part: Part, place: Place, verdict: Event, seen: RejudgedTest, cases: dict[str, Case]
) -> Iterator[Reason]:
    """Yield a reason if a verdict does not follow from the case that it names."""
    given, name = Verdict(verdict["verdict"]), verdict["case"]
    case = cases.get(name)
    if case is None:
        yield left_out(f"{place} is {given} because of case {name}, which is missing")
        return
    if (case.requirement, case.cell) != (place.requirement, place.cell):
        yield altered(f"{place} is {given} because of case {name}, which is about {case.requirement} in {case.cell}")
    if not seen.failing:
        yield altered(f"{place} is {given} because of case {name}, but none of its {seen.examples} examples fails")
    yield from check_waiver(part, place, verdict, case)
    follows = verdict_as_replayed(verdict_of_case(case)[0], verdict["not_behind"])
    if follows is not given:
        yield altered(f"{place} is {given}; from its case {name} follows {follows}")


def check_further(part: Part, place: Place, verdict: Event, cases: dict[str, Case]) -> Iterator[Reason]:
    """Yield a reason if another case of a trial is worse than its verdict, is missing or is of another trial."""
    given = Verdict(verdict["verdict"])
    for one in verdict["further"]:
        name, case = one["case"], cases.get(one["case"])
        if case is None:
            yield left_out(f"{place} is {given} with case {name} besides, which is missing")
            continue
        if (case.requirement, case.cell) != (place.requirement, place.cell):
            yield altered(f"{place} has case {name} besides, which is about {case.requirement} in {case.cell}")
        yield from check_waiver(part, place, verdict, case)
        follows, _ = verdict_of_case(case)
        if follows != one["verdict"]:
            yield altered(f"{place} has case {name} besides as {one['verdict']}; from the case follows {follows}")
        if worst([given, follows]) is not given:
            yield altered(f"{place} is {given}; from its case {name} follows {follows}")


def check_waiver(part: Part, place: Place, verdict: Event, case: Case) -> Iterator[Reason]:
    """Yield a reason if a case is waived by something else than the bundle's copy of the known issues, or if it cannot
    have the cause that it is said to have.
    """
    yield from (altered(f"{place}: case {case.id} {words}") for words in check_attribution(case))
    if case.known_issue is None:
        return
    try:
        waivers: Waivers = part.waivers(verdict)
    except UsageError as problem:
        yield altered(f"{place}: {problem}")
        return
    issue = waivers.waive(msgspec.structs.replace(case, known_issue=None))
    if issue is None:
        yield left_out(f"{place}: case {case.id} is waived, but no known issue of the bundle matches it")
    elif str(issue) != case.known_issue:
        yield altered(f"{place}: case {case.id} is waived with a text that differs from the known issue")


def check_rules(part: Part) -> Iterator[Reason]:
    """Yield a reason for each place whose examples were compared by a rule that no calibration of the run found.

    GROUND requirements may also use the rule of the engine's own cold answers, if the oracle is another engine.
    """
    found, own = set(), set()
    for event in part.all("calibration"):
        measured, mine = msgspec.convert(event["calibration"], Calibration), msgspec.convert(event["own_rule"], Rule)
        noise = None if measured.exact else measured.noise_nats
        found.add((measured.exact, noise, measured.band, measured.rounding, measured.cold))
        own.add((mine.exact, mine.noise, mine.band, mine.rounding, mine.cold))
    for place, seen in sorted(part.rejudged.items()):
        allowed = found | own if place.requirement.startswith("GROUND") else found
        lossy = CELLS[place.cell].lossy if place.cell in CELLS else ""
        if any(rule.lossy != lossy for rule in seen.rules):
            yield altered(f"{place}: its examples were judged with another lossy mode than the cell's")
        if any((rule.exact, rule.noise, rule.band, rule.rounding, rule.cold) not in allowed for rule in seen.rules):
            yield altered(f"{place}: its examples were compared by a rule that no calibration of the run found")


def check_case_files(part: Part, cases: dict[str, Case]) -> Iterator[Reason]:
    """Yield a reason for each case file that is missing or differs from the events."""
    for name, case in sorted(cases.items()):
        path = part.folder / "cases" / f"{name}.json"
        if not is_file_name(name):
            yield not_accepted(f"case {name} has no name of a file")
        elif not path.is_file():
            yield left_out(f"cases/{name}.json is missing")
        elif read_bytes(path, most=MOST_CASE) != encode(case):
            yield altered(f"cases/{name}.json differs from the case in the events")


def common_capabilities(engines: list[OpenedEngine]) -> set[Capability]:
    """Return the capabilities that all engines of a cell have."""
    able = [{name for name, support in e.engine.capabilities.items() if support.present is True} for e in engines]
    return set.intersection(*able) if able else set()
