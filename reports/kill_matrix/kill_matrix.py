"""Renders power.json as one self-contained page: the kill matrix, undetected faults first."""

from __future__ import annotations

import statistics
from pathlib import Path

import msgspec

from coldproof.harness.schema.power import Detection, FaultRow, Outcome, PowerResults
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.page.environment import PageTemplates

ORDER = (Outcome.SURVIVED, Outcome.NEVER_ACTED, Outcome.NO_ENGINE, Outcome.CAUGHT, Outcome.EQUIVALENT)
MEANING = {
    Outcome.CAUGHT: "a requirement was violated, confirmed on a fresh engine",
    Outcome.SURVIVED: "the fault acted but was not detected",
    Outcome.NEVER_ACTED: "the workloads of this measurement did not trigger the fault",
    Outcome.NO_ENGINE: "the engine did not start with the fault, or the run failed; not counted as detected",
    Outcome.EQUIVALENT: "cannot be distinguished from a correct engine; not counted",
}
BUDGET_OF = {  # what the seconds of `PowerResults.budgets` are for
    "aimed": "the requirements about it",
    "wide": "all requirements",
    "smoke": "the profile smoke in process, up to the first violation",
}


class Figures(msgspec.Struct, frozen=True):
    """The measurement in numbers.

    Requests and seconds are counted up to the first detection; None if no fault was detected.
    """

    counted: int
    caught: int
    by_own: int
    short: int  # detected faults with a case of at most SHORT_CASE_STEPS steps
    literal: int
    false_alarms: int
    clean_requests: int
    median_requests: float | None
    worst_requests: int | None
    median_seconds: float | None
    worst_seconds: float | None


SHORT_CASE_STEPS = 8  # steps
UNTESTED = Verdict.UNSUPPORTED.value


def figures(results: PowerResults) -> Figures:
    """Return the numbers of a measurement, without equivalent faults."""
    counted = [row for row in results.faults if row.outcome is not Outcome.EQUIVALENT]
    caught = [row for row in counted if row.outcome is Outcome.CAUGHT]
    firsts = [row.first for row in caught if row.first is not None]
    requests, seconds = [d.requests for d in firsts], [d.seconds for d in firsts]
    return Figures(
        counted=len(counted),
        caught=len(caught),
        by_own=sum(row.by_its_own for row in caught),
        short=sum(any(d.steps <= SHORT_CASE_STEPS for d in row.detections) for row in caught),
        literal=sum(any(script.found for script in row.literal) for row in counted),
        false_alarms=sum(len(run.detections) for run in results.clean),
        clean_requests=sum(run.requests for run in results.clean),
        median_requests=statistics.median(requests) if requests else None,
        worst_requests=max(requests, default=None),
        median_seconds=statistics.median(seconds) if seconds else None,
        worst_seconds=max(seconds, default=None),
    )


def headline(results: PowerResults) -> str:
    """Return the measurement in one sentence that can be quoted."""
    numbers = figures(results)
    alarms = f"{numbers.false_alarms} false positives" if numbers.false_alarms != 1 else "1 false positive"
    return (
        f"{numbers.caught} of {numbers.counted} injected faults detected on {results.engine} "
        f"with the {results.worker} worker; "
        f"{alarms} in {len(results.clean)} runs on the unmodified engine"
    )


def by_outcome(results: PowerResults) -> list[tuple[Outcome, list[FaultRow]]]:
    """Return the faults by outcome, undetected ones first."""
    return [(outcome, [row for row in results.faults if row.outcome is outcome]) for outcome in ORDER]


def by_mechanism(results: PowerResults) -> list[tuple[str, list[FaultRow]]]:
    """Return the faults by mechanism in the catalogue's order, undetected ones first in each."""
    mechanisms = dict.fromkeys(row.mechanism for row in results.faults)
    rank = {outcome: place for place, outcome in enumerate(ORDER)}
    return [
        (mechanism, sorted((r for r in results.faults if r.mechanism == mechanism), key=lambda r: rank[r.outcome]))
        for mechanism in mechanisms
    ]


def columns(results: PowerResults) -> list[str]:
    """Return the ids of all requirements that a run tested, sorted."""
    named = {requirement for row in results.faults for run in row.runs for requirement in run.verdicts}
    return sorted(name for name in named if any(tested(row, name) for row in results.faults))


def tested(row: FaultRow, requirement: str) -> bool:
    """Return whether a run tested a requirement. An UNSUPPORTED requirement was not tested."""
    return any(run.verdicts.get(requirement, UNTESTED) != UNTESTED for run in row.runs)


def detection(row: FaultRow, requirement: str) -> Detection | None:
    """Return the earliest detection of a fault by a requirement; None if there is none."""
    found = [d for d in row.detections if d.requirement == requirement]
    return min(found, key=lambda d: d.requests, default=None)


TEMPLATES = PageTemplates(folders=(Path(__file__).parent / "templates",))


def render_power(results: PowerResults) -> str:
    """Return the kill matrix as one HTML document. Reads only templates, and no clock."""
    return TEMPLATES.page(
        "kill_matrix.html.j2",
        styles=("style.css", "kill_matrix.css"),
        results=results,
        figures=figures(results),
        headline=headline(results),
        outcomes=by_outcome(results),
        meaning=MEANING,
        budget_of=BUDGET_OF,
        mechanisms=by_mechanism(results),
        columns=columns(results),
        field_scripts=list(dict.fromkeys(script.name for row in results.faults for script in row.literal)),
        detection=detection,
        tested=tested,
        longest_case=SHORT_CASE_STEPS,
    )
