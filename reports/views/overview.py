"""Facts that every report shows: validity of the run, counts of verdicts, results that are not conclusive.

The HTML page, the JUnit file and the summary use these functions, so that they cannot disagree.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import CellResult, FleetRow, RequirementResult, Results, SelfTestRow, Waiver
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.format.text import file_link

GLYPH = {
    Verdict.CONFORMS: "✓",
    Verdict.UNSUPPORTED: "–",
    Verdict.KNOWN_ISSUE: "◆",
    Verdict.NOT_EXERCISED: "○",
    Verdict.INCONCLUSIVE: "?",
    Verdict.ERROR: "!",
    Verdict.VIOLATED: "✕",
}

# The order of all reports: violations first.
WORST_FIRST = tuple(reversed(Verdict))

EXIT_MEANING = {
    0: "every requirement conforms, is a known issue or is unsupported",
    1: "a requirement is violated, inconclusive or not exercised",
    3: "the harness failed, the detector self-test failed or a report could not be written",
    4: "usage error",
    5: "no test was selected",
    6: "nothing failed, but no requirement was shown to conform, or fewer than --allow-not-exercised=N asks for",
}

_NOT_VERIFIED = (Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.NOT_EXERCISED, Verdict.UNSUPPORTED)
_WAIVER_ORDER = ("expired", "stale", "used")  # entries that need an edit first
_FLEET_ORDER = ("failed", "missing", "done")


class RunStatus(enum.StrEnum):
    """The result of a run in at most two words, for the badge."""

    CONFORMANT = "conformant"
    KNOWN_ISSUES = "known issues"
    NOT_CONFORMANT = "not conformant"
    NOT_VERIFIED = "not verified"


# The verdict whose colour and symbol a status has.
STATUS_STYLE = {
    RunStatus.CONFORMANT: Verdict.CONFORMS,
    RunStatus.KNOWN_ISSUES: Verdict.KNOWN_ISSUE,
    RunStatus.NOT_CONFORMANT: Verdict.VIOLATED,
    RunStatus.NOT_VERIFIED: Verdict.NOT_EXERCISED,
}


@dataclass(frozen=True, slots=True)
class NotVerified:
    """A requirement in one cell that has no conclusive result. `row` has the verdict and the reason."""

    requirement: str
    title: str
    row: CellResult


def failed_selftests(results: Results) -> list[SelfTestRow]:
    """Return the self-tests that the detector failed. A single one makes the run invalid."""
    return [row for row in results.selftest if not row.caught]


def invalid_sentence(results: Results) -> str:
    """Return why no verdict is shown; "" for a valid run."""
    failed = len(failed_selftests(results))
    if not failed:
        return ""
    return f"The detector failed {failed} of {len(results.selftest)} self-tests, so no verdict of this run is valid."


def headline(results: Results) -> str:
    """Return the run's result in one sentence. For an invalid run, the stored headline is not used."""
    return invalid_sentence(results) or results.headline


def run_status(results: Results) -> RunStatus:
    """Return what the run shows about the unmodified engine.

    An invalid run shows nothing, and neither does one with an injected fault or with repairs. A violation counts even
    if the run failed otherwise.
    Conformance requires a complete run with exit code 0.
    """
    found = [requirement.verdict for requirement in results.requirements]
    if failed_selftests(results) or results.fault is not None or results.repairs:
        return RunStatus.NOT_VERIFIED
    if Verdict.VIOLATED in found:
        return RunStatus.NOT_CONFORMANT
    if results.exit_code != 0 or not results.complete:
        return RunStatus.NOT_VERIFIED
    if Verdict.KNOWN_ISSUE in found:
        return RunStatus.KNOWN_ISSUES
    return RunStatus.CONFORMANT if Verdict.CONFORMS in found else RunStatus.NOT_VERIFIED


def headline_parts(results: Results) -> tuple[str, str]:
    """Return the conclusion of the headline, "" if it has none, and the rest of the headline."""
    invalid = invalid_sentence(results)
    return ("", invalid) if invalid else (results.conclusion, results.summary or results.headline)


def headline_style(results: Results) -> Verdict:
    """Return the verdict whose colour and symbol the headline has."""
    violated = any(requirement.verdict is Verdict.VIOLATED for requirement in results.requirements)
    return Verdict.VIOLATED if violated else STATUS_STYLE[run_status(results)]


def banners(results: Results) -> list[str]:
    """Return the warnings that are shown in capitals before the headline."""
    invalid = ["RUN INVALID"] if failed_selftests(results) else []
    injected = ["FAULT INJECTED"] if results.fault is not None else []
    shipped = any(not one.repaired for one in results.findings)
    first = " AFTER REPLAYS ON THE SHIPPED ONE" if shipped else ""
    repaired = [f"ENGINE REPAIRED{first}"] if results.repairs else []
    return invalid + injected + repaired + ([] if results.complete else ["INCOMPLETE RUN"])


def counts(results: Results) -> list[tuple[Verdict, int]]:
    """Return the number of requirements with each verdict, worst first, zeros included."""
    verdicts = [requirement.verdict for requirement in results.requirements]
    return [(verdict, verdicts.count(verdict)) for verdict in WORST_FIRST]


def cell_rows(requirement: RequirementResult) -> list[CellResult]:
    """Return the requirement's rows by cell, and a row for all cells if no cell has the requirement's verdict."""
    if any(cell.verdict is requirement.verdict for cell in requirement.cells):
        return list(requirement.cells)
    whole = CellResult(
        cell="(all cells)",
        verdict=requirement.verdict,
        reason=requirement.reason,
        examples=requirement.examples,
        requests=0,
        evidence=requirement.evidence,
        seconds=0.0,
    )
    return [*requirement.cells, whole]


def not_verified(results: Results) -> list[NotVerified]:
    """Return the requirements and cells without a conclusive result, worst first, then in the order of the run."""
    found = [
        NotVerified(requirement.id, requirement.title, row)
        for requirement in results.requirements
        for row in cell_rows(requirement)
        if row.verdict in _NOT_VERIFIED
    ]
    return sorted(found, key=lambda entry: _NOT_VERIFIED.index(entry.row.verdict))


def waivers(results: Results) -> list[Waiver]:
    """Return the entries of the known-issues file, expired and stale entries first."""
    return sorted(results.waivers, key=_waiver_rank)


def waivers_by_use(results: Results) -> tuple[list[Waiver], list[Waiver]]:
    """Return the entries that the run used or that need an edit, and those that matched nothing in it."""
    entries = waivers(results)
    shown = [one for one in entries if one.cases or one.state in _WAIVER_ORDER]
    return shown, [one for one in entries if one not in shown]


def _waiver_rank(waiver: Waiver) -> tuple[int, str, str, str]:
    state = waiver.state.casefold()
    rank = next((index for index, word in enumerate(_WAIVER_ORDER) if word in state), len(_WAIVER_ORDER))
    return rank, waiver.requirement, waiver.cell, waiver.signature


def ordered_cases(cases: Sequence[Case]) -> list[Case]:
    """Return the violations, then the known issues and remarks, each in the order in which they were found."""
    return sorted(cases, key=lambda case: (case.known_issue is not None, case.is_remark))


def engine_name(results: Results) -> str:
    """Return the engine's name and version as text."""
    if results.engine is None:
        return "no engine (not reached)"
    attached = results.switches.engine if results.switches is not None and results.switches.known else ""
    return f"{attached or results.engine.name} {results.engine.version or '(version unknown)'}"


def fleet_rows(results: Results) -> list[FleetRow]:
    """Return the runs, failed and missing ones first, otherwise in the order of the matrix."""
    return sorted(
        results.fleet, key=lambda row: _FLEET_ORDER.index(row.state) if row.state in _FLEET_ORDER else len(_FLEET_ORDER)
    )


def fleet_link(row: FleetRow) -> str:
    """Return the relative link to a run's own report."""
    return file_link(*row.report.split("/"), "index.html")


def fleet_counts(results: Results) -> str:
    """Return the number of runs in each state as text; "" for the results of a single run."""
    found = {state: sum(row.state == state for row in results.fleet) for state in _FLEET_ORDER}
    lost = sum(row.lost for row in results.fleet)
    parts = [f"{count} {state}" for state, count in reversed(found.items()) if count]
    return ", ".join([*parts, *([f"{lost} lost and repeated"] if lost else [])])


def layer_difference(results: Results) -> str:
    """Return which versions the layers ran, if they differ; "" if they are all the same."""
    versions = {one.layer: one.engine.version or "unknown" for one in results.layers if one.engine is not None}
    if len(set(versions.values())) < 2:
        return ""
    ran = ", ".join(f"{layer}: {version}" for layer, version in versions.items())
    return (
        f"The layers ran different versions of the engine ({ran}). A verdict holds only for the version of its layer."
    )
