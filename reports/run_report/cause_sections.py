"""The part of the page about each cause: its best case in full, and its other cases as a list."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from coldproof.harness.schema.case import Case
from coldproof.reports.format.text import file_link, slug, unique
from coldproof.reports.run_report.case.view import CaseView, case_view
from coldproof.reports.views.cause_view import CauseView

MOST_LISTED = 200  # cases of all causes that are listed; a page with thousands would be too large


@dataclass(frozen=True, slots=True)
class ListedCase:
    """A case that is not drawn, with the anchor of its row and the link to its bug report."""

    case: Case
    anchor: str
    link: str


@dataclass(frozen=True, slots=True)
class CauseSection:
    """A cause and its part of the page. `shown`: its best case, drawn in full. `more`: cases that are not even listed.

    `anchor`: "" for a cause without a case, which has no part of its own.
    """

    cause: CauseView
    anchor: str
    open: bool
    shown: CaseView | None
    others: list[ListedCase]
    more: int

    @property
    def script_link(self) -> str:
        """Return the relative link to the script of its best case."""
        return file_link("cases", f"{self.cause.cases[0].id}.py")


@dataclass(frozen=True, slots=True)
class Worst:
    """The first cause that no known issue waives. `shown`: its best case, as it stands on the first screens."""

    shown: CaseView
    link: str


def cause_sections(causes: Sequence[CauseView], *, drawn: int) -> list[CauseSection]:
    """Return the sections in the order of the causes. `drawn`: how many of them have their best case in full.

    Anchors are unique for all ids and names. Every listed case has an anchor.
    """
    taken: set[str] = set()
    sections = []
    left = MOST_LISTED
    for place, cause in enumerate(causes):
        anchor = unique(f"cause-{slug(cause.name)}", taken) if cause.cases else ""
        best = cause.cases[: 1 if place < drawn else 0]
        shown = case_view(best[0], unique(f"case-{slug(best[0].id)}", taken)) if best else None
        rest = cause.cases[len(best) :]
        others = [_listed(case, taken) for case in rest[:left]]
        left -= len(others)
        sections.append(
            CauseSection(
                cause=cause,
                anchor=anchor,
                open=place == 0 and cause.fails,
                shown=shown,
                others=others,
                more=len(rest) - len(others),
            )
        )
    return sections


def worst_of(sections: Sequence[CauseSection]) -> Worst | None:
    """Return the first cause if no known issue waives it and its case is drawn; otherwise None."""
    first = next(iter(sections), None)
    if first is None or not first.cause.fails or first.shown is None:
        return None
    return Worst(replace(first.shown, anchor="worst"), first.shown.anchor)


def case_anchors(sections: Sequence[CauseSection]) -> dict[str, str]:
    """Return the anchor of each case on the page, by the id of the case."""
    listed = {one.case.id: one.anchor for section in sections for one in section.others}
    return {**listed, **{one.shown.case.id: one.shown.anchor for one in sections if one.shown is not None}}


def _listed(case: Case, taken: set[str]) -> ListedCase:
    return ListedCase(case, unique(f"case-{slug(case.id)}", taken), file_link("cases", f"{case.id}.md"))
