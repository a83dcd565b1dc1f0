"""power.json in, the kill matrix out: one self-contained page, survivors first.

Everything shown passes through the report's own environment, which escapes it: a case's sentence may quote an engine.
"""

from __future__ import annotations

import statistics

import msgspec

from reports.power_schema import Detection, FaultRow, Outcome, PowerResults, SuiteRun
from reports.render import own, page
from reports.schema import Verdict

ORDER = (Outcome.SURVIVED, Outcome.NEVER_ACTED, Outcome.NO_ENGINE, Outcome.CAUGHT, Outcome.EQUIVALENT)
MEANING = {
    Outcome.CAUGHT: "a requirement was violated, confirmed on a fresh engine",
    Outcome.SURVIVED: "the fault acted and nothing was noticed",
    Outcome.NEVER_ACTED: "the workloads of this measurement never reached it",
    Outcome.NO_ENGINE: "with it the engine did not start, or the run broke: not counted as caught",
    Outcome.EQUIVALENT: "no observer can tell it from a correct engine; not counted",
}


class Figures(msgspec.Struct, frozen=True):
    """The measurement in numbers. Requests and seconds are to the first detection; None where nothing was caught."""

    counted: int
    caught: int
    by_own: int
    short: int  # of those, with a case of at most eight steps
    literal: int
    false_alarms: int
    clean_requests: int
    median_requests: float | None
    worst_requests: int | None
    median_seconds: float | None
    worst_seconds: float | None


LONGEST_CASE = 8  # steps
UNTESTED = Verdict.UNSUPPORTED.value


def figures(results: PowerResults) -> Figures:
    """Counted are all faults that an observer could tell."""
    counted = [row for row in results.faults if row.outcome is not Outcome.EQUIVALENT]
    caught = [row for row in counted if row.outcome is Outcome.CAUGHT]
    firsts = [row.first for row in caught if row.first is not None]
    requests, seconds = [d.requests for d in firsts], [d.seconds for d in firsts]
    return Figures(
        counted=len(counted),
        caught=len(caught),
        by_own=sum(row.by_its_own for row in caught),
        short=sum(any(d.steps <= LONGEST_CASE for d in row.detections) for row in caught),
        literal=sum(any(script.found for script in row.literal) for row in counted),
        false_alarms=sum(len(run.detections) for run in results.clean),
        clean_requests=sum(run.requests for run in results.clean),
        median_requests=statistics.median(requests) if requests else None,
        worst_requests=max(requests, default=None),
        median_seconds=statistics.median(seconds) if seconds else None,
        worst_seconds=max(seconds, default=None),
    )


def headline(results: PowerResults) -> str:
    """The measurement in one sentence that a person can quote."""
    seen = figures(results)
    alarms = f"{seen.false_alarms} false alarms" if seen.false_alarms != 1 else "1 false alarm"
    return (
        f"{seen.caught} of {seen.counted} injected faults caught on {results.engine} with the {results.worker} worker; "
        f"{alarms} in {len(results.clean)} runs on the engine as it is"
    )


def by_outcome(results: PowerResults) -> list[tuple[Outcome, list[FaultRow]]]:
    """What needs a look first."""
    return [(outcome, [row for row in results.faults if row.outcome is outcome]) for outcome in ORDER]


def by_mechanism(results: PowerResults) -> list[tuple[str, list[FaultRow]]]:
    """In the catalogue's order; survivors first within each."""
    mechanisms = dict.fromkeys(row.mechanism for row in results.faults)
    rank = {outcome: place for place, outcome in enumerate(ORDER)}
    return [
        (mechanism, sorted((r for r in results.faults if r.mechanism == mechanism), key=lambda r: rank[r.outcome]))
        for mechanism in mechanisms
    ]


def columns(results: PowerResults) -> list[str]:
    """The requirements that any run tested, by id."""
    named = {requirement for row in results.faults for run in row.runs for requirement in run.verdicts}
    return sorted(name for name in named if any(tested(row, name) for row in results.faults))


def tested(row: FaultRow, requirement: str) -> bool:
    """Whether a requirement was put to the engine at all: not where a cell lacks what it needs."""
    return any(run.verdicts.get(requirement, UNTESTED) != UNTESTED for run in row.runs)


def detection(row: FaultRow, requirement: str) -> Detection | None:
    """The earlier of a requirement's detections of a fault."""
    found = [d for d in row.detections if d.requirement == requirement]
    return min(found, key=lambda d: d.requests, default=None)


def tried(row: FaultRow) -> int:
    """The requests that a fault was exposed to."""
    return sum(run.requests for run in row.runs)


def scripts(results: PowerResults) -> list[str]:
    """The field reports' names."""
    return list(dict.fromkeys(script.name for row in results.faults for script in row.literal))


def found_by(row: FaultRow, script: str) -> str:
    """What a field report's script noticed of a fault."""
    return next((s.found for s in row.literal if s.name == script), "")


def accused(run: SuiteRun) -> str:
    """What a run on the engine as it is blamed it for."""
    return ", ".join(d.requirement for d in run.detections) or "nothing"


def render_power(results: PowerResults) -> str:
    """The kill matrix as one HTML document. Reads its own templates, and no clock."""
    return page(
        "power.html.j2",
        own("style.css") + own("power.css"),
        results=results,
        figures=figures(results),
        headline=headline(results),
        outcomes=by_outcome(results),
        meaning=MEANING,
        mechanisms=by_mechanism(results),
        columns=columns(results),
        scripts=scripts(results),
        detection=detection,
        tested=tested,
        found_by=found_by,
        tried=tried,
        accused=accused,
        longest_case=LONGEST_CASE,
    )
