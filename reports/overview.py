"""What every report says alike: is the run valid, how many of each verdict, what was not shown.

The HTML page, the JUnit file and the summary all ask here, so that they cannot disagree.
"""

from __future__ import annotations

import enum
from collections.abc import Sequence
from dataclasses import dataclass

from reports.schema import Case, CellResult, RequirementResult, Results, SelfTestRow, Verdict, Waiver

GLYPH = {
    Verdict.CONFORMS: "✓",
    Verdict.UNSUPPORTED: "–",
    Verdict.KNOWN_ISSUE: "◆",
    Verdict.NOT_EXERCISED: "○",
    Verdict.INCONCLUSIVE: "?",
    Verdict.ERROR: "!",
    Verdict.VIOLATED: "✕",
}

# Worst first: what a reader came for stands at the top.
WORST_FIRST = tuple(reversed(Verdict))

EXIT_MEANING = {
    0: "every requirement conforms, is a known issue or is unsupported",
    1: "something is violated, inconclusive or not exercised",
    3: "the harness failed, its self-test failed or a report could not be written",
    4: "usage",
    5: "nothing was selected",
}

_NOT_SHOWN = (Verdict.ERROR, Verdict.INCONCLUSIVE, Verdict.NOT_EXERCISED, Verdict.UNSUPPORTED)
_WAIVER_ORDER = ("expired", "stale", "used")  # what needs a hand first


class Standing(enum.StrEnum):
    """The run in the two words that a badge has room for."""

    CONFORMANT = "conformant"
    KNOWN_ISSUES = "known issues"
    NOT_CONFORMANT = "not conformant"
    NOT_SHOWN = "not shown"


# The verdict whose colour and symbol stand for it.
LOOKS_LIKE = {
    Standing.CONFORMANT: Verdict.CONFORMS,
    Standing.KNOWN_ISSUES: Verdict.KNOWN_ISSUE,
    Standing.NOT_CONFORMANT: Verdict.VIOLATED,
    Standing.NOT_SHOWN: Verdict.NOT_EXERCISED,
}


@dataclass(frozen=True, slots=True)
class NotShown:
    """One requirement in one cell about which the run proved nothing, and why."""

    requirement: str
    title: str
    row: CellResult


def missed(results: Results) -> list[SelfTestRow]:
    """The self-test rows on which the detector was wrong. Any at all makes the run invalid."""
    return [row for row in results.selftest if not row.caught]


def invalid_sentence(results: Results) -> str:
    """Why no verdict is shown; empty for a valid run."""
    wrong = len(missed(results))
    if not wrong:
        return ""
    return f"The detector was wrong on {wrong} of {len(results.selftest)} self-tests, so no verdict of this run counts."


def headline(results: Results) -> str:
    """The run in one sentence. An invalid run gets its own: the stored one may speak of verdicts."""
    return invalid_sentence(results) or results.headline


def standing(results: Results) -> Standing:
    """What may be said of the engine as it is: nothing after an invalid run, or with a fault injected.

    A violation stands whatever else went wrong; conformance takes a run that passed as a whole.
    """
    found = [requirement.verdict for requirement in results.requirements]
    if missed(results) or results.fault is not None:
        return Standing.NOT_SHOWN
    if Verdict.VIOLATED in found:
        return Standing.NOT_CONFORMANT
    if results.exit_code != 0 or not results.complete:
        return Standing.NOT_SHOWN
    if Verdict.KNOWN_ISSUE in found:
        return Standing.KNOWN_ISSUES
    return Standing.CONFORMANT if Verdict.CONFORMS in found else Standing.NOT_SHOWN


def headline_parts(results: Results) -> tuple[str, str]:
    """The headline's verdict and the rest of it; the verdict is empty where the headline has none."""
    word, dash, rest = headline(results).partition(" — ")
    return (word, rest) if dash else ("", headline(results))


def headline_looks(results: Results) -> Verdict:
    """The verdict whose colour and symbol the headline has."""
    violated = any(requirement.verdict is Verdict.VIOLATED for requirement in results.requirements)
    return Verdict.VIOLATED if violated else LOOKS_LIKE[standing(results)]


def marks(results: Results) -> list[str]:
    """The words that stand before the headline, in capitals."""
    invalid = ["RUN INVALID"] if missed(results) else []
    broken = ["ENGINE BROKEN ON PURPOSE"] if results.fault is not None else []
    return invalid + broken + ([] if results.complete else ["INCOMPLETE RUN"])


def counts(results: Results) -> list[tuple[Verdict, int]]:
    """How many requirements have each verdict, worst first, zeros included."""
    verdicts = [requirement.verdict for requirement in results.requirements]
    return [(verdict, verdicts.count(verdict)) for verdict in WORST_FIRST]


def rows(requirement: RequirementResult) -> list[CellResult]:
    """The requirement cell by cell, plus itself where no cell has its verdict: the verdict is never lost."""
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


def not_shown(results: Results) -> list[NotShown]:
    """Every requirement and cell that is neither pass nor violation, worst first, then in the run's order."""
    found = [
        NotShown(requirement.id, requirement.title, row)
        for requirement in results.requirements
        for row in rows(requirement)
        if row.verdict in _NOT_SHOWN
    ]
    return sorted(found, key=lambda entry: _NOT_SHOWN.index(entry.row.verdict))


def waivers(results: Results) -> list[Waiver]:
    """The known-issues file as the run used it, expired and stale entries first."""
    return sorted(results.waivers, key=_waiver_rank)


def _waiver_rank(waiver: Waiver) -> tuple[int, str, str, str]:
    state = waiver.state.casefold()
    rank = next((place for place, word in enumerate(_WAIVER_ORDER) if word in state), len(_WAIVER_ORDER))
    return rank, waiver.requirement, waiver.cell, waiver.signature


def ordered_cases(cases: Sequence[Case]) -> list[Case]:
    """Violations before known issues, otherwise as found."""
    return sorted(cases, key=lambda case: case.known_issue is not None)


def engine_name(results: Results) -> str:
    """Engine and version in words."""
    if results.engine is None:
        return "no engine was reached"
    return f"{results.engine.name} {results.engine.version or '(version unknown)'}"
