"""One saved case, arranged for reading: what failed, how sure that is, where the answers part.

Pure functions over the schema's rows. Nothing here judges: bounds and verdicts are the run's, this only compares the
numbers it was given.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from reports.margins import Margins, margins
from reports.promptbars import PromptBars, prompt_bars
from reports.schema import Case, Reproduction, TokenRow
from reports.text import file_link, slug, unique
from reports.timeline import Timeline, timeline

_BEFORE = 6  # positions shown before the first difference, and after it; the rest is folded
_AFTER = 12
_MAX_FOLDED = 512


@dataclass(frozen=True, slots=True)
class CaseView:
    """A case and all that its section shows beside it."""

    case: Case
    anchor: str
    open: bool
    timeline: Timeline | None
    prompts: PromptBars | None
    margins: Margins | None
    near: list[TokenRow]
    far: list[TokenRow]
    far_left_out: int
    reproduction: list[str]
    script: str
    files: list[tuple[str, str]]


def case_views(cases: list[Case], *, unfolded: int) -> list[CaseView]:
    """The sections in order, the first few unfolded. Anchors are unique whatever the ids are."""
    taken: set[str] = set()
    return [
        _view(case, unique(f"case-{slug(case.id)}", taken), unfold=place < unfolded) for place, case in enumerate(cases)
    ]


def _view(case: Case, anchor: str, *, unfold: bool) -> CaseView:
    near = [row for row in case.tokens if _is_near(row, case.first_difference)]
    far = [row for row in case.tokens if not _is_near(row, case.first_difference)]
    return CaseView(
        case=case,
        anchor=anchor,
        open=unfold,
        timeline=timeline(case),
        prompts=prompt_bars(case),
        margins=margins(case),
        near=near,
        far=far[:_MAX_FOLDED],
        far_left_out=max(0, len(far) - _MAX_FOLDED),
        reproduction=reproduction_in_words(case.reproduction),
        script=f"python {shlex.quote(f'cases/{case.id}.py')}",
        files=[(f"cases/{case.id}.{kind}", file_link("cases", f"{case.id}.{kind}")) for kind in ("md", "json", "py")],
    )


def _is_near(row: TokenRow, first: int | None) -> bool:
    middle = first or 0
    return middle - _BEFORE <= row.position <= middle + _AFTER


def reproduction_in_words(seen: Reproduction) -> list[str]:
    """Every figure of how often it failed, those that are missing said to be missing."""
    agreement = {
        True: "A freshly started engine gives the expected answer too.",
        False: "A freshly started engine does not give the expected answer: the oracles disagree.",
        None: "The expected answer was not checked against a freshly started engine.",
    }
    sentences = [
        f"While it was being minimised it failed {_times(seen.while_shrinking_failed, seen.while_shrinking_tries)}.",
        f"Replayed on a fresh engine it {_failed(seen.fresh_failed, seen.fresh_tries)}.",
        f"With prefix caching off it {_failed(seen.caching_off_failed, seen.caching_off_tries)}.",
        agreement[seen.fresh_oracle_agrees],
    ]
    return [*sentences, seen.note] if seen.note else sentences


def reproduction_in_short(seen: Reproduction) -> str:
    """One figure for a table: fresh engine if it was tried, else while minimising."""
    if seen.fresh_failed is not None and seen.fresh_tries:
        return f"{seen.fresh_failed} of {seen.fresh_tries} fresh"
    return f"{seen.while_shrinking_failed} of {seen.while_shrinking_tries} minimising"


def _failed(failed: int | None, tries: int | None) -> str:
    return "was not tried" if failed is None or not tries else f"failed {_times(failed, tries)}"


def _times(failed: int, tries: int) -> str:
    return f"{failed} of {tries} {'time' if tries == 1 else 'times'}"
