"""Assembles results from the events of a run. results.json depends on events.ndjson only.

A requirement that was announced but has no verdict makes the run incomplete. It is never dropped.
"""

from __future__ import annotations

import contextlib
import datetime
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec

from coldproof.harness.schema.case import Case, Unfinished
from coldproof.harness.schema.exit_codes import (
    EXIT_FAILED,
    EXIT_HARNESS,
    EXIT_NOT_SHOWN,
    EXIT_NOTHING,
    EXIT_OK,
    EXIT_USAGE,
)
from coldproof.harness.schema.findings import FindingFacts, FindingReplay
from coldproof.harness.schema.results import (
    Calibration,
    EngineResult,
    InjectedFault,
    PlantedRepair,
    RequirementResult,
    Results,
    SelfTestRow,
    Timing,
    Waiver,
)
from coldproof.harness.schema.stored_files import decode, decode_object, read_lines
from coldproof.harness.schema.switches import ServerSwitches
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import causes
from coldproof.reports.assemble.distributions import History, tally
from coldproof.reports.assemble.forbidden_mixtures import without_forbidden_mixtures
from coldproof.reports.assemble.layers import layer_results, own_events
from coldproof.reports.assemble.over_time import EvidenceSample, dropped_kinds, growths, losses, progress
from coldproof.reports.assemble.pairs import feature_pairs
from coldproof.reports.assemble.reach import state_tables
from coldproof.reports.assemble.requirement_results import requirement_results
from coldproof.reports.assemble.shipped_causes import replay_counts
from coldproof.reports.assemble.unreadable_events import with_problem_of_gaps
from coldproof.reports.assemble.weight_updates import PairFields, update_counts
from coldproof.reports.format.text import duration

Event = dict[str, Any]
SHOWN = (Verdict.CONFORMS, Verdict.KNOWN_ISSUE)
# With --allow-not-exercised and no number, so many requirements have to be shown, or all supported ones if these are
# fewer: an attached server with few capabilities supports eight.
LEAST_SHOWN = 5
LAST_TIME = 253_402_300_799  # seconds since 1970: the end of the last year that a calendar has
REPLAYS = ("shipped", "finding")  # events with replays of known findings
EXAMPLE = b'{"event":"example",'


class Example(msgspec.Struct, frozen=True, kw_only=True):
    """The fields of an example event that reports need."""

    at: float = 0.0
    process: str = ""
    number: int = -1
    requirement: str
    cell: str
    layer: str = ""
    weight_pairs: list[PairFields]
    findings: tuple[msgspec.Raw, ...]
    history: History
    evidence: dict[str, float]
    reach: dict[str, int]
    seen: tuple[str, ...]


def read_events(path: Path) -> list[Event]:
    """Return all complete events, and a problem if one is missing: see `unreadable_events`.

    A line that is no event is ignored: a killed run leaves an incomplete one.

    Examples may be gigabytes, so that only the fields that reports need are kept. Raises OSError, and UnreadableFile
    for what is no file of events.
    """
    return with_problem_of_gaps(events_of(read_lines(path)))


def events_of(lines: Iterable[bytes]) -> list[Event]:
    """Return the events in complete lines."""
    events = []
    for line in lines:
        with contextlib.suppress(ValueError):
            event = example_event(decode(line, Example)) if line.startswith(EXAMPLE) else decode_object(line)
            check_stamp(event)
            events.append(event)
    return events


def check_stamp(event: Event) -> None:
    """Raise ValueError for an event without a kind, or without a time that a calendar has."""
    kind, at = event.get("event"), event.get("at")
    if not isinstance(kind, str) or isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at < LAST_TIME:
        raise ValueError("the line is not an event")


def example_event(read: Example) -> Event:
    """Return what reports need of an example."""
    return {
        "event": "example",
        "at": read.at,
        "process": read.process,
        "number": read.number,
        "requirement": read.requirement,
        "cell": read.cell,
        "layer": read.layer,
        "requests": len(read.history.outcomes),
        "weight_pairs": read.weight_pairs,
        "failed": bool(read.findings),
        "tally": tally(read.history, read.evidence),
        "reach": tuple(map(sys.intern, read.reach)),
        "seen": read.seen,
        "evidence": msgspec.to_builtins(msgspec.convert(read.evidence, EvidenceSample)),
    }


def assemble(events: list[Event]) -> Results:
    """Return the results of the events so far. Raises LookupError if the events have no start of a run."""
    first = last_of(events, "run_started")
    if first is None:
        raise LookupError("the events have no start of a run")
    finished = last_of(events, "run_finished") or {}
    events = without_forbidden_mixtures([*cases_that_wait(events), *without_replaced_cases(events)])
    requirements = requirement_results(events)
    cases = [msgspec.convert(e["case"], Case) for e in events if e["event"] == "case"]
    problem = last_of(events, "problem") or {}
    concluded = tests_of(events, "requirement") == tests_of(events, "verdict")
    complete = bool(finished.get("complete")) and concluded and not problem
    own = own_events(events)
    engine = last_of(own, "engine") or last_of(events, "engine")
    calibration = last_of(own, "calibration") or last_of(events, "calibration")
    results = Results(
        coldproof_version=first["version"],
        started=first["started"],
        duration_s=round(events[-1]["at"] - first["at"], 1),
        complete=complete,
        headline="",
        exit_code=0,
        problem=problem.get("message", ""),
        command=first["command"],
        profile=first["profile"],
        seed=first["seed"],
        shard=first.get("shard", ""),
        engine=msgspec.convert(engine["engine"], EngineResult) if engine else None,
        environment=first["environment"],
        selftest=msgspec.convert((last_of(events, "selftest") or {}).get("rows", []), list[SelfTestRow]),
        calibration=msgspec.convert(calibration["calibration"], Calibration) if calibration else None,
        requirements=requirements,
        cases=cases,
        causes=causes([case for case in cases if case.unfinished is not Unfinished.PROOF]),
        waivers=msgspec.convert((last_of(events, "waivers") or {}).get("waivers", []), list[Waiver]),
        totals=totals(requirements, events),
        timing=timing(events, first["at"]),
        weight_updates=update_counts(events),
        fault=injected_fault(first.get("fault"), events),
        repairs=msgspec.convert(first.get("repairs", []), list[PlantedRepair]),
        progress=progress(events, first["at"]),
        losses=losses(events, first["at"]),
        dropped_kinds=dropped_kinds(events, first["at"]),
        growth=growths(events, first["at"]),
        layers=layer_results(events, requirements),
        findings=[msgspec.convert(e["replay"], FindingReplay) for e in events if e["event"] in REPLAYS],
        records=records_of(events),
        reach=state_tables(events),
        pairs=feature_pairs(events),
        switches=switches_of(events),
    )
    allowed = {Verdict(name) for name in first["allowed"]}
    least = least_shown(first, requirements)
    code = exit_code(results, usage=problem.get("usage", False), allowed=allowed, least=least)
    results = msgspec.structs.replace(results, exit_code=code)
    conclusion, summary = headline(results)
    return msgspec.structs.replace(
        results, headline=f"{conclusion} — {summary}", conclusion=conclusion, summary=summary
    )


def with_end(events: list[Event]) -> list[Event]:
    """Return the events. If the run was killed, a problem event is appended.

    Raises LookupError if the events have no start of a run.
    """
    first, finished = last_of(events, "run_started"), last_of(events, "run_finished")
    if first is None:
        raise LookupError("the events have no start of a run")
    if finished is not None or last_of(events, "problem") is not None:
        return events
    last = events[-1]["at"]
    at = f"{datetime.datetime.fromtimestamp(last, datetime.UTC):%Y-%m-%d %H:%M:%S} UTC"
    message = (
        f"the run did not end: its last event is from {at}, {duration(last - first['at'])} after its start, and no "
        "event has a reason"
    )
    return [*events, {"event": "problem", "at": last, "message": message, "usage": False}]


def last_of(events: list[Event], kind: str) -> Event | None:
    """Return the newest event of a kind; None if there is none."""
    return next((e for e in reversed(events) if e["event"] == kind), None)


def injected_fault(fault: dict[str, str] | None, events: list[Event]) -> InjectedFault | None:
    """Return the injected fault of the run; None if there is none. It acted if it acted in any worker process."""
    return InjectedFault(acted=any(e["acted"] for e in events if e["event"] == "fault"), **fault) if fault else None


def records_of(events: list[Event]) -> list[FindingFacts]:
    """Return what is known of the findings that the run met, one of each, by id."""
    told = [msgspec.convert(one, FindingFacts) for e in events if e["event"] == "records" for one in e["records"]]
    return sorted({one.id: one for one in told}.values(), key=lambda one: one.id)


def switches_of(events: list[Event]) -> ServerSwitches | None:
    """Return what an attached server lets the run test; None if the run started its engines, or reached no server."""
    found = last_of(events, "switches")
    return msgspec.convert(found["switches"], ServerSwitches) if found else None


def without_replaced_cases(events: list[Event]) -> list[Event]:
    """Return the events without the cases that were proved later: what they became follows."""
    kept: list[Event] = []
    for event in events:
        if event["event"] == "proved":
            kept = [one for one in kept if one["event"] != "case" or one["case"]["id"] not in event["cases"]]
        kept.append(event)
    return kept


def cases_that_wait(events: list[Event]) -> list[Event]:
    """Return the counterexamples of a run that was killed before they were proved, as events of their cases."""
    waiting: dict[tuple[str, str, str], Event] = {}
    for event in events:
        if event["event"] == "waits" and event.get("case") is not None:
            waiting[event.get("layer", ""), event["test"], event["cell"]] = event
        elif event["event"] == "case":
            waiting.pop((event.get("layer", ""), event["case"]["test"], event["case"]["cell"]), None)
        elif event["event"] == "proved":
            waiting = {place: one for place, one in waiting.items() if one["case"]["id"] not in event["cases"]}
    for concluded in tests_of(events, "verdict"):
        waiting.pop(concluded, None)
    return [{**event, "event": "case"} for event in waiting.values()]


def tests_of(events: list[Event], kind: str) -> set[tuple[str, str, str]]:
    """Return layer, test and cell of every event of a kind."""
    return {(e.get("layer", ""), e["test"], e["cell"]) for e in events if e["event"] == kind}


def totals(requirements: list[RequirementResult], events: list[Event]) -> dict[str, int]:
    """Return the number of requirements for each verdict, and the total numbers of examples and requests."""
    counted = {verdict.value: sum(r.verdict is verdict for r in requirements) for verdict in Verdict}
    examples = [e for e in events if e["event"] == "example"]
    return {
        **counted,
        "requirements": len(requirements),
        "examples": len(examples),
        "requests": sum(e["requests"] for e in examples),
    }


def timing(events: list[Event], started: float) -> Timing:
    """Return the time measurements, averaged over the workers of the run."""
    measured = [e for e in events if e["event"] == "measured"]
    verdicts = [e["at"] for e in events if e["event"] == "verdict"]
    calibrated = [e["seconds"] for e in events if e["event"] == "calibration"]
    suites = sum(e["suite_seconds"] for e in measured) / len(measured) if measured else None
    busy = sum(e["busy_seconds"] for e in measured) / len(measured) if measured else 0.0
    examples = [e for e in events if e["event"] == "example"]
    requests = sum(e["requests"] for e in examples)
    return Timing(
        command_to_first_verdict=round(verdicts[0] - started, 1) if verdicts else None,
        engine_start=[seconds for e in measured for seconds in e["engine_starts"]],
        calibration=calibrated[0] if calibrated else None,
        suites=round(suites, 1) if suites is not None else None,
        engine_idle_share=round(1 - busy / suites, 3) if suites else None,
        requests_per_minute=round(60 * requests / suites, 1) if suites else None,
        examples_per_minute=round(60 * len(examples) / suites, 1) if suites else None,
    )


def least_shown(start: Event, requirements: list[RequirementResult]) -> int:
    """Return how many requirements have to be shown. The number that a user gave is for the run that shards make up."""
    given: int | None = start.get("least_shown")
    if Verdict.NOT_EXERCISED not in start["allowed"] or start.get("shard"):
        return 1
    supported = sum(one.verdict is not Verdict.UNSUPPORTED for one in requirements)
    return max(1, min(LEAST_SHOWN, supported) if given is None else given)


def exit_code(results: Results, *, usage: bool, allowed: set[Verdict], least: int = 1) -> int:
    """Return the exit code. `least`: the number of requirements that have to conform or be known issues.

    A failed self-test comes first, then a violation, then failures of the harness. A run that shows nothing is not 0,
    nor is one with a counterexample that it had no time to prove, whatever is allowed: it may be a violation.
    """
    verdicts = [r.verdict for r in results.requirements]
    if any(not row.caught for row in results.selftest):
        return EXIT_HARNESS
    if results.complete and verdicts and not results.selftest:  # without a self-test the detector is not trusted
        return EXIT_HARNESS
    if Verdict.VIOLATED in verdicts:
        return EXIT_FAILED
    if results.problem:
        return EXIT_USAGE if usage else EXIT_HARNESS
    if Verdict.ERROR in verdicts:
        return EXIT_HARNESS
    if not verdicts:
        return EXIT_NOTHING
    failing = {Verdict.INCONCLUSIVE, Verdict.NOT_EXERCISED} - allowed
    unproved = any(case.unfinished is Unfinished.PROOF for case in results.cases)
    if failing & set(verdicts) or unproved or not results.complete:
        return EXIT_FAILED
    return EXIT_OK if sum(verdict in SHOWN for verdict in verdicts) >= least else EXIT_NOT_SHOWN


def headline(results: Results) -> tuple[str, str]:
    """Return the run in one sentence that can be quoted, as two parts: the conclusion and its basis."""
    if any(not row.caught for row in results.selftest):
        return "RUN INVALID", "the detector did not pass its self-test"
    engine = f"{results.engine.name} {results.engine.version or ''}".strip() if results.engine else "no engine"
    counts = [
        f"{results.totals[v.value]} {v.value.lower()}" for v in reversed(Verdict) if results.totals.get(v.value, 0)
    ]
    what = ", ".join(counts) or "no requirement was run"
    if remarked := sum(bool(one.remarks) for one in results.requirements):
        what += f", {remarked} with a remark"
    violated = results.totals.get(Verdict.VIOLATED.value, 0)
    if violated:
        word = "NOT CONFORMANT"
    elif results.exit_code == EXIT_OK:
        waived = results.totals.get(Verdict.KNOWN_ISSUE.value, 0)
        word = "CONFORMANT, known issues aside" if waived else "CONFORMANT"
    elif results.exit_code == EXIT_NOT_SHOWN:
        # Nothing failed, but nothing was verified, for example because everything is unsupported; or too little was.
        word = "TOO LITTLE SHOWN" if any(results.totals.get(one.value, 0) for one in SHOWN) else "NOTHING SHOWN"
    else:
        word = "NOT SHOWN TO CONFORM"
    if results.shard:
        engine += f" (shard {results.shard})"
    if results.fault is not None:
        never = "" if results.fault.acted else ", which never acted"
        engine += f" with the injected fault '{results.fault.name}'{never}"
    if results.repairs:
        many = len(results.repairs)
        engine += f" with the repair of {results.repairs[0].name}" if many == 1 else f" with {many} repairs"
        if shipped := replay_counts(results.findings):
            engine += f" (its known findings as shipped: {shipped})"
    many = results.totals["requirements"]
    return word, f"of {many} requirement{'s' * (many != 1)} on {engine}: {what}"
