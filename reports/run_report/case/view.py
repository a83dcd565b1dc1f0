"""The view of one saved case: its charts, its tokens around the first difference and its reproduction rate.

Pure functions over the rows of the schema. Bounds and verdicts come from the run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from coldproof.harness.schema.case import FILES, Case, Reproduction, TokenRow, VectorRow
from coldproof.reports.format.text import file_link
from coldproof.reports.run_report.case.logprob_margins import MarginChart, margin_chart
from coldproof.reports.run_report.case.prompt_bars import PromptBars, prompt_bars
from coldproof.reports.run_report.case.timeline import Timeline, timeline

_BEFORE = 6  # positions before the first difference that are shown; the rest is folded
_AFTER = 12  # positions after it
_MAX_FOLDED = 512


@dataclass(frozen=True, slots=True)
class ValueView:
    """One value of a vector, cold and warm. `observed`: None if it is no finite number."""

    place: int
    expected: float
    observed: float | None
    differs: bool


@dataclass(frozen=True, slots=True)
class CaseView:
    """A case and the derived data of its section."""

    case: Case
    anchor: str
    timeline: Timeline | None
    prompts: PromptBars | None
    margins: MarginChart | None
    near: list[TokenRow]
    far: list[TokenRow]
    far_left_out: int
    values: list[ValueView]
    reproduction: list[str]
    script: str
    files: list[tuple[str, str]]


def case_view(case: Case, anchor: str) -> CaseView:
    """Return the view of a case. `anchor`: of its part of the page."""
    near = [row for row in case.tokens if _is_near(row, case.first_difference)]
    far = [row for row in case.tokens if not _is_near(row, case.first_difference)]
    return CaseView(
        case=case,
        anchor=anchor,
        timeline=timeline(case),
        prompts=prompt_bars(case),
        margins=margin_chart(case),
        near=near,
        far=far[:_MAX_FOLDED],
        far_left_out=max(0, len(far) - _MAX_FOLDED),
        values=[] if case.vector is None else _values(case.vector),
        reproduction=reproduction_text(case.reproduction),
        script=f"python {shlex.quote(f'cases/{case.id}.py')}",
        files=[(f"cases/{case.id}{end}", file_link("cases", f"{case.id}{end}")) for end in FILES],
    )


def _values(vector: VectorRow) -> list[ValueView]:
    pairs = zip(vector.expected, vector.observed, strict=True)
    return [
        ValueView(place, cold, warm, warm is None or abs(warm - cold) > vector.tolerance)
        for place, (cold, warm) in enumerate(pairs)
    ]


def _is_near(row: TokenRow, first: int | None) -> bool:
    middle = first or 0
    return middle - _BEFORE <= row.position <= middle + _AFTER


def reproduction_text(seen: Reproduction) -> list[str]:
    """Return sentences with all failure counts. Counts that are missing are named as such."""
    agreement = {
        True: "A fresh engine gives the expected answer, too.",
        False: "A fresh engine does not give the expected answer: the oracles disagree.",
        None: "The expected answer was not checked on a fresh engine.",
    }
    sentences = [
        f"During minimisation, {_failures('run', seen.while_shrinking_failed, seen.while_shrinking_tries)}.",
        f"On a fresh engine, {_failures('replay', seen.fresh_failed, seen.fresh_tries)}.",
        *_on_running(seen),
        f"With prefix caching off, {_failures('replay', seen.caching_off_failed, seen.caching_off_tries)}.",
        agreement[seen.fresh_oracle_agrees],
    ]
    return [*sentences, seen.note] if seen.note else sentences


def _on_running(seen: Reproduction) -> list[str]:
    count = _failures("replay", seen.running_failed, seen.running_tries)
    return [f"On an engine that had run other workloads, {count}."] if seen.running_tries else []


def reproduction_summary(seen: Reproduction) -> str:
    """Return one failure count for a table: on a fresh engine if that was tried, or on the running one, else during
    minimisation.
    """
    if seen.fresh_failed is not None and seen.fresh_tries:
        return f"{seen.fresh_failed} of {seen.fresh_tries}, fresh engine"
    if seen.running_failed is not None and seen.running_tries:
        return f"{seen.running_failed} of {seen.running_tries}, running engine"
    return f"{seen.while_shrinking_failed} of {seen.while_shrinking_tries}, minimisation"


def _failures(what: str, failed: int | None, tries: int | None) -> str:
    if failed is None or not tries:
        return f"no {what} was made"
    return f"{failed} of {tries} {what if tries == 1 else what + 's'} failed"
