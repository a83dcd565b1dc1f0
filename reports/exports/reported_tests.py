"""The tests of a run as CI systems read them: one for each requirement in each cell, and one for the run as a whole.

A test has the same name in every run of the same requirement and cell, so that a service that follows tests over time
recognises it. The test of the run is in each run, failed or not, for the same reason.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from coldproof.harness.schema.case import FILES
from coldproof.harness.schema.results import CellResult, RequirementResult, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.assemble.causes import cause_key, fingerprint
from coldproof.reports.format.shell import command_line
from coldproof.reports.format.text import one_line
from coldproof.reports.views import overview

RUN = "run"  # the name of the test of the run as a whole


class Outcome(enum.StrEnum):
    """How a test ended, as these formats know it."""

    PASSED = "passed"
    FAILED = "failed"
    ERROR = "error"
    SKIPPED = "skipped"


_OUTCOMES = {
    Verdict.CONFORMS: Outcome.PASSED,
    Verdict.VIOLATED: Outcome.FAILED,
    Verdict.INCONCLUSIVE: Outcome.FAILED,
    Verdict.NOT_EXERCISED: Outcome.FAILED,
    Verdict.ERROR: Outcome.ERROR,
    Verdict.UNSUPPORTED: Outcome.SKIPPED,
    Verdict.KNOWN_ISSUE: Outcome.SKIPPED,
}


@dataclass(frozen=True, kw_only=True)
class ReportedTest:
    """A test. `group`: its suite, as path. `kind`: the verdict. `message`: the reason in one line, "" if it passed.

    `details`: the cases, with the commands that replay them. `files`: of the report that belong to it.
    """

    group: tuple[str, ...]
    name: str
    outcome: Outcome
    kind: str
    message: str = ""
    details: tuple[str, ...] = ()
    seconds: float = 0.0
    facts: dict[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def reported_tests(results: Results) -> list[ReportedTest]:
    """Return the tests of a run. One that failed its self-test has no verdicts: only errors."""
    failed = overview.failed_selftests(results)
    selftests = [
        ReportedTest(
            group=("coldproof", "selftest"),
            name=test.planted,
            outcome=Outcome.ERROR,
            kind="RUN INVALID",
            message=one_line(f"RUN INVALID: {test.said}"),
        )
        for test in failed
    ]
    rows = [
        _of_cell(requirement, row, results)
        for requirement in results.requirements
        for row in overview.cell_rows(requirement)
    ]
    return [*selftests, *(() if failed else rows), _of_run(results)]


def _of_cell(requirement: RequirementResult, row: CellResult, results: Results) -> ReportedTest:
    outcome = _OUTCOMES[row.verdict]
    cases = [case for case in results.cases if case.requirement == requirement.id and case.place == row.label]
    facts = {"verdict": row.verdict.value, "examples": str(row.examples), "requests": str(row.requests)}
    reason = f"{row.verdict.value}: {row.reason or 'no reason was recorded'}"
    return ReportedTest(
        group=("coldproof", row.label),
        name=f"{requirement.id}[{row.label}] {requirement.title}",
        outcome=outcome,
        kind=row.verdict.value,
        message="" if outcome is Outcome.PASSED else one_line(reason),
        details=tuple(
            f"{case.id} ({case.failure_class.value}, cause {fingerprint(cause_key(case))}): {case.sentence}\n"
            f"replay: {command_line(case.replay)}"
            for case in cases
        ),
        seconds=row.seconds,
        facts=facts | {f"evidence.{key}": f"{value:.15g}" for key, value in sorted(row.evidence.items())},
        files=tuple(f"cases/{case.id}{end}" for case in cases for end in FILES),
    )


def _of_run(results: Results) -> ReportedTest:
    trouble = _trouble(results)
    return ReportedTest(
        group=("coldproof",),
        name=RUN,
        outcome=Outcome.ERROR if trouble else Outcome.PASSED,
        kind="ERROR" if trouble else "COMPLETE",
        message=one_line(trouble),
        details=(trouble,) if trouble else (),
        seconds=results.duration_s,
    )


def _trouble(results: Results) -> str:
    """Return the problem of the run as a whole; "" if there is none. A suite without test cases must not pass."""
    if overview.failed_selftests(results):
        return "RUN INVALID: the self-test failed, so that no verdict of this run can be believed"
    if results.problem:
        return results.problem
    if not results.complete:
        return "INCOMPLETE RUN: it was interrupted before everything was tested"
    return "" if results.requirements else "nothing was tested"


def run_facts(results: Results) -> dict[str, str]:
    """Return what a reader wants to know of the whole run."""
    return {
        "headline": " ".join([*overview.banners(results), overview.headline(results)]),
        "engine": overview.engine_name(results),
        "profile": results.profile,
        "seed": results.seed,
        "command": results.command,
        "exit_code": str(results.exit_code),
        "coldproof_version": results.coldproof_version,
    }
