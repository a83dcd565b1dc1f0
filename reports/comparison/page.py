"""Renders a comparison as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from coldproof.reports.comparison.comparison import MEANING, ChangeKind, Comparison, counts, headline, of_kind
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.schema.verdict import Verdict
from coldproof.reports.views.requirements import verdict_class

# Each kind has the colour of a similar verdict, so that a colour has one meaning.
_LIKE = {
    ChangeKind.NEWLY_VIOLATED: Verdict.VIOLATED,
    ChangeKind.FAILS_DIFFERENTLY: Verdict.VIOLATED,
    ChangeKind.NO_LONGER_EXERCISED: Verdict.NOT_EXERCISED,
    ChangeKind.WAIVER_REMOVED: Verdict.INCONCLUSIVE,
    ChangeKind.STILL_VIOLATED: Verdict.VIOLATED,
    ChangeKind.NEWLY_WAIVED: Verdict.KNOWN_ISSUE,
    ChangeKind.STILL_WAIVED: Verdict.KNOWN_ISSUE,
    ChangeKind.FIXED: Verdict.CONFORMS,
    ChangeKind.NEWLY_EXERCISED: Verdict.CONFORMS,
    ChangeKind.UNCHANGED: Verdict.UNSUPPORTED,
}


TEMPLATES = PageTemplates(folders=(Path(__file__).parent / "templates",))


def render_comparison(comparison: Comparison) -> str:
    """Return the comparison as one HTML document. Reads only templates, and no clock."""
    return TEMPLATES.page(
        "changes.html.j2",
        styles=("style.css", "changes.css"),
        comparison=comparison,
        headline=headline(comparison),
        counts=counts(comparison),
        of_kind=of_kind,
        kinds=ChangeKind,
        meaning=MEANING,
        colour={kind: verdict_class(verdict) for kind, verdict in _LIKE.items()},
    )
