"""Renders runs side by side as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from coldproof.reports.assemble.causes import waived_text
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.schema.verdict import Verdict
from coldproof.reports.side_by_side.changes import MEANING, STILL, ChangeKind, counts, of_kind
from coldproof.reports.side_by_side.comparable_runs import comparable_groups, differences, notes
from coldproof.reports.side_by_side.matrix import SideBySide
from coldproof.reports.side_by_side.violations import causes, explanation
from coldproof.reports.views.requirements import main_figures, verdict_class
from coldproof.reports.views.run_facts import traits

# Each kind of change has the colour of a similar verdict, so that a colour has one meaning.
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
_COLOUR = {kind: verdict_class(verdict) for kind, verdict in _LIKE.items()}

TEMPLATES = PageTemplates(
    folders=(Path(__file__).parent / "templates",),
    filters={"main_figures": main_figures, "waived_text": waived_text, "explanation": explanation},
    values={"kinds": ChangeKind, "meaning": MEANING, "colour": _COLOUR, "still": STILL},
)


def render_side_by_side(shown: SideBySide) -> str:
    """Return the page as one HTML document. Reads only templates, and no clock."""
    series = shown.kind.series
    return TEMPLATES.page(
        "side_by_side.html.j2",
        styles=("style.css", "matrix.css", "side_by_side.css"),
        scripts=("script.js",),
        shown=shown,
        matrix=shown,
        found=shown.verdicts,
        filtered="rows",
        traits=traits,
        together=comparable_groups(shown.columns, series=series),
        notes=notes(shown.columns, series=series, by_time=shown.kind.by_time),
        differences=differences(shown.columns, series=series),
        changed=[(kind, of_kind(shown.changes, kind)) for kind, count in counts(shown.changes) if count],
        causes=causes(shown.columns),
    )
