"""Builds results from the run's events: results.json is a view of events.ndjson and of nothing else.

A requirement that was announced and never concluded makes the run incomplete; it is never dropped.
"""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import msgspec

from reports.causes import causes
from reports.distributions import History, distributions, tally
from reports.growth import growths
from reports.progress import Seen, losses, progress
from reports.schema import (
    Calibration,
    Case,
    CellResult,
    EngineResult,
    InjectedFault,
    RequirementResult,
    Results,
    SelfTestRow,
    Timing,
    Verdict,
    Waiver,
    worst,
)

Event = dict[str, Any]
EXIT_OK, EXIT_FAILED, EXIT_HARNESS, EXIT_USAGE, EXIT_NOTHING = 0, 1, 3, 4, 5
EXAMPLE = b'{"event":"example",'


class Example(msgspec.Struct, frozen=True):
    """What reports need of an example: when and where it ended, whether it failed, what it did and saw."""

    at: float = 0.0
    requirement: str = ""
    cell: str = ""
    findings: tuple[msgspec.Raw, ...] = ()
    history: History = History()
    evidence: dict[str, float] = {}


def read_events(path: Path) -> list[Event]:
    """All whole lines. A line that the run did not finish writing is left out.

    Examples may come to gigabytes: of them only a few figures are kept.
    """
    events = []
    with path.open("rb") as lines:
        for line in lines:
            with contextlib.suppress(ValueError):
                if line.startswith(EXAMPLE):
                    read = msgspec.json.decode(line, type=Example)
                    events.append(
                        {
                            "event": "example",
                            "at": read.at,
                            "requirement": read.requirement,
                            "cell": read.cell,
                            "requests": len(read.history.outcomes),
                            "failed": bool(read.findings),
                            "tally": tally(read.history, read.evidence),
                            "evidence": msgspec.to_builtins(msgspec.convert(read.evidence, Seen)),
                        }
                    )
                else:
                    events.append(json.loads(line))
    return events


def assemble(events: list[Event]) -> Results:
    """Results of the events so far. Raises LookupError when not even the start of a run is there."""
    first = last_of(events, "run_started")
    if first is None:
        raise LookupError("the events hold no start of a run")
    finished = last_of(events, "run_finished") or {}
    requirements = requirement_results(events)
    cases = [msgspec.convert(e["case"], Case) for e in events if e["event"] == "case"]
    selftest = msgspec.convert((last_of(events, "selftest") or {}).get("rows", []), list[SelfTestRow])
    problem = (last_of(events, "problem") or {}).get("message", "")
    complete = bool(finished.get("complete")) and tests_of(events, "requirement") == tests_of(events, "verdict")
    engine = last_of(events, "engine")
    calibration = last_of(events, "calibration")
    results = Results(
        coldproof_version=first["version"],
        started=first["started"],
        duration_s=round(events[-1]["at"] - first["at"], 1),
        complete=complete,
        headline="",
        exit_code=0,
        problem=problem,
        command=first["command"],
        profile=first["profile"],
        seed=first["seed"],
        shard=first.get("shard", ""),
        engine=msgspec.convert(engine["engine"], EngineResult) if engine else None,
        environment=first["environment"],
        selftest=selftest,
        calibration=msgspec.convert(calibration["calibration"], Calibration) if calibration else None,
        requirements=requirements,
        cases=cases,
        causes=causes(cases),
        waivers=msgspec.convert((last_of(events, "waivers") or {}).get("waivers", []), list[Waiver]),
        totals=totals(requirements, events),
        timing=timing(events, first["at"]),
        fault=injected(first.get("fault"), events),
        progress=progress(events, first["at"]),
        losses=losses(events, first["at"]),
        growth=growths(events, first["at"]),
    )
    code = exit_code(
        results,
        usage=(last_of(events, "problem") or {}).get("usage", False),
        allowed={Verdict(name) for name in first["allowed"]},
    )
    results = msgspec.structs.replace(results, exit_code=code)
    return msgspec.structs.replace(results, headline=headline(results))


def last_of(events: list[Event], kind: str) -> Event | None:
    """The newest event of a kind."""
    return next((e for e in reversed(events) if e["event"] == kind), None)


def injected(fault: dict[str, str] | None, events: list[Event]) -> InjectedFault | None:
    """The bug that the run's engines were born with; each worker of a run says whether it acted in its own."""
    return InjectedFault(acted=any(e["acted"] for e in events if e["event"] == "fault"), **fault) if fault else None


def tests_of(events: list[Event], kind: str) -> set[tuple[str, str]]:
    """(test, cell) of every announcement or verdict."""
    return {(e["test"], e["cell"]) for e in events if e["event"] == kind}


def requirement_results(events: list[Event]) -> list[RequirementResult]:
    """One result per announced requirement, its tests and cells brought together, by id."""
    announced: dict[str, list[Event]] = defaultdict(list)
    for event in events:
        if event["event"] == "requirement":
            announced[event["id"]].append(event)
    verdicts = {(e["requirement"], e["cell"], e["test"]): e for e in events if e["event"] == "verdict"}
    examples = [e for e in events if e["event"] == "example"]
    results = []
    for requirement_id, tests in sorted(announced.items()):
        cells = [cell_result(test, verdicts.get((requirement_id, test["cell"], test["test"]))) for test in tests]
        merged = merge_cells(cells)
        verdict = worst([cell.verdict for cell in merged])
        results.append(
            RequirementResult(
                id=requirement_id,
                title="; ".join(dict.fromkeys(test["title"] for test in tests)),
                statement="\n\n".join(dict.fromkeys(test["statement"] for test in tests)),
                verdict=verdict,
                reason=next(cell.reason for cell in merged if cell.verdict is verdict),
                examples=sum(cell.examples for cell in merged),
                evidence=added([cell.evidence for cell in merged]),
                needed=list(dict.fromkeys(name for test in tests for name in test.get("shows", ()))),
                cells=merged,
                cases=[
                    e["case"]["id"]
                    for e in events
                    if e["event"] == "case" and e["case"]["requirement"] == requirement_id
                ],
                upstream=list(dict.fromkeys(link for test in tests for link in test.get("upstream", ()))),
                fails_on=list(dict.fromkeys(words for test in tests for words in test.get("fails_on", ()))),
                distributions=distributions(e["tally"] for e in examples if e["requirement"] == requirement_id),
            )
        )
    return results


def cell_result(test: Event, verdict: Event | None) -> CellResult:
    """One test's result; without a verdict the run ended before it."""
    if verdict is None:
        return CellResult(
            cell=test["cell"],
            verdict=Verdict.NOT_EXERCISED,
            reason="the run ended before this requirement was concluded",
            examples=0,
            requests=0,
            evidence={},
            seconds=0.0,
        )
    fields = ("cell", "reason", "examples", "requests", "evidence", "seconds")
    return CellResult(
        verdict=Verdict(verdict["verdict"]),
        drawn=verdict.get("drawn", 0.0),
        share=verdict.get("share", 0.0),
        **{name: verdict[name] for name in fields},
    )


def merge_cells(cells: list[CellResult]) -> list[CellResult]:
    """Tests of one requirement in one cell, together."""
    by_cell: dict[str, list[CellResult]] = defaultdict(list)
    for cell in cells:
        by_cell[cell.cell].append(cell)
    merged = []
    for name, parts in by_cell.items():
        verdict = worst([part.verdict for part in parts])
        merged.append(
            CellResult(
                cell=name,
                verdict=verdict,
                reason="; ".join(dict.fromkeys(part.reason for part in parts if part.verdict is verdict)),
                examples=sum(part.examples for part in parts),
                requests=sum(part.requests for part in parts),
                evidence=added([part.evidence for part in parts]),
                seconds=round(sum(part.seconds for part in parts), 3),
                drawn=round(sum(part.drawn for part in parts), 3),
                share=round(sum(part.share for part in parts), 3),
            )
        )
    return merged


def added(parts: list[dict[str, float]]) -> dict[str, float]:
    """Evidence counters summed."""
    total: dict[str, float] = defaultdict(float)
    for part in parts:
        for name, value in part.items():
            total[name] += value
    return dict(total)


def totals(requirements: list[RequirementResult], events: list[Event]) -> dict[str, int]:
    """Requirements by verdict, and what was run in all."""
    counted = {verdict.value: sum(r.verdict is verdict for r in requirements) for verdict in Verdict}
    examples = [e for e in events if e["event"] == "example"]
    return {
        **counted,
        "requirements": len(requirements),
        "examples": len(examples),
        "requests": sum(e["requests"] for e in examples),
    }


def timing(events: list[Event], started: float) -> Timing:
    """Where the time went, summed or taken over the workers' own measurements."""
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


def exit_code(results: Results, *, usage: bool, allowed: set[Verdict]) -> int:
    """DESIGN's contract: a violation outranks everything; then the harness's own failures; nothing shown is not 0."""
    verdicts = [r.verdict for r in results.requirements]
    if any(not row.caught for row in results.selftest):
        return EXIT_HARNESS
    if results.complete and verdicts and not results.selftest:  # nothing vouches for the detector
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
    if failing & set(verdicts) or not results.complete:
        return EXIT_FAILED
    return EXIT_OK


def headline(results: Results) -> str:
    """The run in one sentence that a person can quote."""
    if any(not row.caught for row in results.selftest):
        return "RUN INVALID — the detector did not pass its self-test"
    engine = f"{results.engine.name} {results.engine.version or ''}".strip() if results.engine else "no engine"
    counts = [
        f"{results.totals[v.value]} {v.value.lower()}" for v in reversed(Verdict) if results.totals.get(v.value, 0)
    ]
    what = ", ".join(counts) or "no requirement was run"
    violated = results.totals.get(Verdict.VIOLATED.value, 0)
    if violated:
        word = "NOT CONFORMANT"
    elif results.exit_code == EXIT_OK:
        waived = results.totals.get(Verdict.KNOWN_ISSUE.value, 0)
        word = "CONFORMANT, known issues aside" if waived else "CONFORMANT"
        if not waived and not results.totals.get(Verdict.CONFORMS.value, 0):
            word = "NOTHING SHOWN"  # all unsupported is no failure, and no praise either
    else:
        word = "NOT SHOWN TO CONFORM"
    if results.shard:
        engine += f" (shard {results.shard})"
    if results.fault is not None:
        engine += f" with the injected fault '{results.fault.name}'"
    many = results.totals["requirements"]
    return f"{word} — of {many} requirement{'s' * (many != 1)} on {engine}: {what}"
