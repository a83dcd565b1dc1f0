"""Renders runs side by side as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from coldproof.reports.assemble.causes import waived_text
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.side_by_side.changes import STILL, ChangeKind, by_kind
from coldproof.reports.side_by_side.comparable_runs import comparable_groups, differences, notes
from coldproof.reports.side_by_side.matrix import SideBySide
from coldproof.reports.side_by_side.violations import causes, explanation
from coldproof.reports.views.requirements import main_figures
from coldproof.reports.views.run_facts import traits

TEMPLATES = PageTemplates(
    folders=(Path(__file__).parent / "templates",),
    filters={"main_figures": main_figures, "waived_text": waived_text, "explanation": explanation},
    values={"kinds": ChangeKind, "still": STILL},
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
        changed=by_kind(shown.changes),
        causes=causes(shown.columns),
    )
