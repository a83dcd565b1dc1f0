"""Checks whether a run's verdicts follow from its re-evaluated examples, with the functions that the run used."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.registry import CELLS
from coldproof.harness.case.known_issues import Waivers
from coldproof.harness.judgement.requirement import OF_ADAPTERS
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.judgement.verdict import verdict_of_case, verdict_without_case
from coldproof.harness.options import UsageError
from coldproof.harness.release.bundle.refusal import Reason, altered, left_out
from coldproof.harness.release.bundle.run_folder import Part, RejudgedTest
from coldproof.harness.release.requirements.frozen import FrozenTest, Place
from coldproof.reports.assemble.assemble import Event
from coldproof.reports.schema.case import Case, NoiseBand
from coldproof.reports.schema.cold_answers import ColdAnswers
from coldproof.reports.schema.results import encode
from coldproof.reports.schema.verdict import Verdict

CONTENTS = 2  # adapter contents that a requirement about adapters needs


def check_verdicts(part: Part) -> Iterator[Reason]:
    """Yield a reason for each verdict that does not follow, and for examples without a verdict."""
    cases, engines = part.cases(), part.engines()
    concluded = set()
    for place, verdict in part.verdicts():
        concluded.add(place)
        test = part.frozen.test(place)
        if test is None:
            continue  # check_coverage reports it
        seen = part.rejudged.get(place, RejudgedTest())
        yield from check_counts(place, verdict, seen)
        yield from check_verdict(part, place, verdict, test, seen, cases, engines.get(place.cell, []))
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
    if seen.examples and msgspec.convert(verdict.get("cold") or {}, ColdAnswers) != seen.cold:
        yield altered(f"{place}: the verdict rests on other cold answers than its examples")
    for name in sorted(seen.evidence.keys() | verdict["evidence"].keys()):
        recorded, counted = verdict["evidence"].get(name, 0.0), seen.evidence[name]
        if not math.isclose(recorded, counted, rel_tol=1e-9, abs_tol=1e-9):
            yield altered(f"{place}: the verdict counts {recorded} of '{name}', the examples show {counted}")
            return


def check_verdict(
    part: Part,
    place: Place,
    verdict: Event,
    test: FrozenTest,
    seen: RejudgedTest,
    cases: dict[str, Case],
    engines: list[Event],
) -> Iterator[Reason]:
    """Yield a reason if one verdict does not follow from its examples, its case and the engine's capabilities."""
    given = Verdict(verdict["verdict"])
    if given is Verdict.ERROR:
        return  # nothing follows from an ERROR; check_outcome refuses it
    if given is Verdict.UNSUPPORTED:
        if seen.examples:
            yield altered(f"{place} is UNSUPPORTED but has {seen.examples} examples")
        if not engines:
            yield left_out(f"{place} is UNSUPPORTED, but no engine of that cell reported its capabilities")
        elif had := {*verdict.get("absent", ())} & common_capabilities(engines):
            yield altered(f"{place} is UNSUPPORTED without {', '.join(sorted(had))}, but the engine has it")
        elif not any(missing_needs(engine, test) for engine in engines):
            yield altered(f"{place} is UNSUPPORTED, but the engine has all capabilities that it needs")
        return
    if found := [one for one in verdict.get("missing", ()) if seen.evidence[one]]:
        yield altered(f"{place} is {given} with missing evidence: {', '.join(found)}; but its examples show it")
    name = verdict["case"]
    if name is None:
        if seen.failing:
            yield altered(f"{place} is {given}, but {seen.failing} of its examples fail")
        else:
            trial = stored_trial(test, place, seen, common_capabilities(engines))
            try:
                waivers: Waivers = part.waivers(verdict)
            except UsageError as problem:
                yield altered(f"{place}: {problem}")
                return
            follows, why = waivers.with_rare(place.requirement, place.cell, *verdict_without_case(trial, None))
            if follows is not given:
                yield altered(f"{place} is {given}; from its examples follows {follows}: {why}")
        return
    case = cases.get(name)
    if case is None:
        yield left_out(f"{place} is {given} because of case {name}, which is missing")
        return
    if (case.requirement, case.cell) != (place.requirement, place.cell):
        yield altered(f"{place} is {given} because of case {name}, which is about {case.requirement} in {case.cell}")
    if not seen.failing:
        yield altered(f"{place} is {given} because of case {name}, but none of its {seen.examples} examples fails")
    yield from check_waiver(part, place, verdict, case)
    follows, _ = verdict_of_case(case)
    if follows is not given:
        yield altered(f"{place} is {given}; from its case {name} follows {follows}")


def check_waiver(part: Part, place: Place, verdict: Event, case: Case) -> Iterator[Reason]:
    """Yield a reason if a case is waived by something else than the bundle's copy of the known issues."""
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
        calibration, mine = event["calibration"], event["own_rule"]
        noise = None if calibration["exact"] else calibration["noise_nats"]
        found.add((calibration["exact"], noise, *measured(calibration)))
        own.add((mine["exact"], mine["noise"], *measured(mine)))
    for place, seen in sorted(part.rejudged.items()):
        allowed = found | own if place.requirement.startswith("GROUND") else found
        lossy = CELLS[place.cell].lossy if place.cell in CELLS else ""
        if any(rule.lossy != lossy for rule in seen.rules):
            yield altered(f"{place}: its examples were judged with another lossy mode than the cell's")
        if any((rule.exact, rule.noise, rule.band, rule.rounding, rule.cold) not in allowed for rule in seen.rules):
            yield altered(f"{place}: its examples were compared by a rule that no calibration of the run found")


def measured(event: Event) -> tuple[NoiseBand | None, float | None, ColdAnswers]:
    """Return what a calibration or rule event measured: the noise tolerance, the rounding, the facts on cold answers.

    Older files have none of them.
    """
    band, cold = event.get("band"), event.get("cold") or {}
    return (
        None if band is None else msgspec.convert(band, NoiseBand),
        event.get("rounding", 0.0),
        msgspec.convert(cold, ColdAnswers),
    )


def check_case_files(part: Part, cases: dict[str, Case]) -> Iterator[Reason]:
    """Yield a reason for each case file that is missing or differs from the events."""
    for name, case in sorted(cases.items()):
        path = part.folder / "cases" / f"{name}.json"
        if not path.is_file():
            yield left_out(f"cases/{name}.json is missing")
        elif path.read_bytes() != encode(case):
            yield altered(f"cases/{name}.json differs from the case in the events")


def missing_needs(engine: Event, test: FrozenTest) -> list[str]:
    """Return what a test needs and the engine does not have, by the engine's reported capabilities."""
    capabilities = engine["engine"]["capabilities"]
    absent = [need.value for need in test.declared.needs if capabilities.get(need, {}).get("present") is not True]
    two = OF_ADAPTERS & set(test.declared.needs)
    return absent or (["adapter contents"] if two and engine["contents"] < CONTENTS else [])


def common_capabilities(engines: list[Event]) -> set[Capability]:
    """Return the capabilities that all engines of a cell have."""
    able = [
        {name for name, support in engine["engine"]["capabilities"].items() if support.get("present") is True}
        for engine in engines
    ]
    return {Capability(name) for name in set.intersection(*able)} if able else set()


def stored_trial(test: FrozenTest, place: Place, seen: RejudgedTest, can: set[Capability]) -> Trial:
    """Return the trial as the run concluded it, with all facts that the verdict depends on."""
    made = Trial(test.declared.on(can), place.cell, test.statement, place.test)
    made.evidence, made.examples = seen.evidence, seen.examples
    made.requests, made.noise, made.permitted = seen.requests, seen.noise, seen.permitted
    made.cold = seen.cold
    made.lossy = next((rule.lossy for rule in seen.rules if rule.lossy), "")
    return made
