"""Whether a run's verdicts follow from its examples, judged again: the same functions as in the run, on fewer words."""

from __future__ import annotations

import math
from collections.abc import Iterator

import msgspec

from adapters.base import Capability
from harness.cells import CELLS
from harness.known_issues import Waivers
from harness.options import UsageError
from harness.qualify.frozen import FrozenTest, Place
from harness.qualify.part import Part
from harness.qualify.reason import Reason, altered, left_out
from harness.qualify.rejudge import Seen
from harness.requirement import Trial
from harness.session import OF_ADAPTERS
from harness.verdict import verdict_of_case, verdict_without_case
from reports.assemble import Event
from reports.schema import Case, NoiseBand, Verdict, encode

CONTENTS = 2  # adapter contents that it takes to tell one from another


def check_verdicts(part: Part) -> Iterator[Reason]:
    """Every verdict, and every example that belongs to none."""
    cases, engines = part.cases(), part.engines()
    concluded = set()
    for place, verdict in part.verdicts():
        concluded.add(place)
        test = part.frozen.test(place)
        if test is None:
            continue  # the list's matter
        seen = part.seen.get(place, Seen())
        yield from check_counts(place, verdict, seen)
        yield from check_verdict(part, place, verdict, test, seen, cases, engines.get(place.cell, []))
    for place in part.seen.keys() - concluded:
        yield altered(f"{place}: there are examples, and no verdict")
    yield from check_rules(part)
    yield from check_case_files(part, cases)


def check_counts(place: Place, verdict: Event, seen: Seen) -> Iterator[Reason]:
    """What a verdict counts is what the log holds, and what the log says comes out again."""
    if seen.otherwise:
        yield altered(
            f"{place}: {seen.otherwise} of {seen.examples} examples were judged otherwise than they are now; the first "
            f"{seen.first_difference}"
        )
    for what, told, counted in (
        ("examples", verdict["examples"], seen.examples),
        ("requests", verdict["requests"], seen.requests),
    ):
        if told != counted:
            yield altered(f"{place}: its verdict counts {told} {what}, the log holds {counted}")
    for name in sorted(seen.evidence.keys() | verdict["evidence"].keys()):
        told, counted = verdict["evidence"].get(name, 0.0), seen.evidence[name]
        if not math.isclose(told, counted, rel_tol=1e-9, abs_tol=1e-9):
            yield altered(f"{place}: its verdict counts {told} of '{name}', the examples show {counted}")
            return


def check_verdict(
    part: Part,
    place: Place,
    verdict: Event,
    test: FrozenTest,
    seen: Seen,
    cases: dict[str, Case],
    engines: list[Event],
) -> Iterator[Reason]:
    """One verdict against what it has to be."""
    given = Verdict(verdict["verdict"])
    if given is Verdict.ERROR:
        return  # nothing follows from it, and it is refused for what it is
    if given is Verdict.UNSUPPORTED:
        if seen.examples:
            yield altered(f"{place} is UNSUPPORTED, and there are {seen.examples} examples of it")
        if not engines:
            yield left_out(f"{place} is UNSUPPORTED, and no engine of that cell said what it can do")
        elif not any(lacking(engine, test) for engine in engines):
            yield altered(f"{place} is UNSUPPORTED, and the engine has all that it needs")
        return
    name = verdict["case"]
    if name is None:
        if seen.failing:
            yield altered(f"{place} is {given}, and {seen.failing} of its examples fail")
        else:
            follows, why = verdict_without_case(trial(test, place, seen, present(engines)), None)
            if follows is not given:
                yield altered(f"{place} is {given}; what its examples show is {follows}: {why}")
        return
    case = cases.get(name)
    if case is None:
        yield left_out(f"{place} is {given} by the case {name}, which is not there")
        return
    if (case.requirement, case.cell) != (place.requirement, place.cell):
        yield altered(f"{place} is {given} by the case {name}, which is of {case.requirement} in {case.cell}")
    if not seen.failing:
        yield altered(f"{place} is {given} by the case {name}, and none of its {seen.examples} examples fails")
    yield from check_waiver(part, place, verdict, case)
    follows, _ = verdict_of_case(case)
    if follows is not given:
        yield altered(f"{place} is {given}; its case {name} is {follows}")


def check_waiver(part: Part, place: Place, verdict: Event, case: Case) -> Iterator[Reason]:
    """A waived case is waived by the bundle's own copy of the known issues."""
    if case.known_issue is None:
        return
    try:
        waivers: Waivers = part.waivers(verdict)
    except UsageError as problem:
        yield altered(f"{place}: {problem}")
        return
    issue = waivers.waive(msgspec.structs.replace(case, known_issue=None))
    if issue is None:
        yield left_out(f"{place}: its case {case.id} is called a known issue, and no known issue of the bundle fits it")
    elif f"{issue.reason} ({issue.link})" != case.known_issue:
        yield altered(f"{place}: its case {case.id} is waived in other words than the known issues have")


def check_rules(part: Part) -> Iterator[Reason]:
    """Examples were judged by a rule that the calibration found. The ground is compared by the engine's own also where
    cold answers come from another one.
    """
    found, own = set(), set()
    for event in part.all("calibration"):
        calibration, mine = event["calibration"], event["own_rule"]
        noise = None if calibration["exact"] else calibration["noise_nats"]
        found.add((calibration["exact"], noise, band_of(calibration)))
        own.add((mine["exact"], mine["noise"], band_of(mine)))
    for place, seen in sorted(part.seen.items()):
        allowed = found | own if place.requirement.startswith("GROUND") else found
        lossy = CELLS[place.cell].lossy if place.cell in CELLS else ""
        if any(rule.lossy != lossy for rule in seen.rules):
            yield altered(f"{place}: its examples were judged as of another mode than the cell's")
        if any((rule.exact, rule.noise, rule.band) not in allowed for rule in seen.rules):
            yield altered(f"{place}: its examples were compared by a rule that no calibration of the run found")


def band_of(told: Event) -> NoiseBand | None:
    """The band of a calibration or a rule as the events have it; files from before there was one have none."""
    found = told.get("band")
    return None if found is None else msgspec.convert(found, NoiseBand)


def check_case_files(part: Part, cases: dict[str, Case]) -> Iterator[Reason]:
    """Each case lies where it can be replayed from, as the events have it."""
    for name, case in sorted(cases.items()):
        path = part.folder / "cases" / f"{name}.json"
        if not path.is_file():
            yield left_out(f"cases/{name}.json is not there")
        elif path.read_bytes() != encode(case):
            yield altered(f"cases/{name}.json is not the case that the events have")


def lacking(engine: Event, test: FrozenTest) -> list[str]:
    """What an engine lacks of a test's needs, by its own capabilities."""
    capabilities = engine["engine"]["capabilities"]
    absent = [need.value for need in test.declared.needs if capabilities.get(need, {}).get("present") is not True]
    two = OF_ADAPTERS & set(test.declared.needs)
    return absent or (["adapter contents"] if two and engine["contents"] < CONTENTS else [])


def present(engines: list[Event]) -> set[Capability]:
    """What a cell's engines can do, all of them."""
    able = [
        {name for name, support in engine["engine"]["capabilities"].items() if support.get("present") is True}
        for engine in engines
    ]
    return {Capability(name) for name in set.intersection(*able)} if able else set()


def trial(test: FrozenTest, place: Place, seen: Seen, can: set[Capability]) -> Trial:
    """The trial as it was when the run concluded it, as far as a verdict depends on it."""
    made = Trial(test.declared.on(can), place.cell, test.statement, place.test)
    made.evidence, made.examples = seen.evidence, seen.examples
    made.requests, made.noise, made.permitted = seen.requests, seen.noise, seen.permitted
    made.lossy = next((rule.lossy for rule in seen.rules if rule.lossy), "")
    return made
