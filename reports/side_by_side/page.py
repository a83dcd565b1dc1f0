"""Renders several engines side by side as one self-contained page."""

from __future__ import annotations

from pathlib import Path

from coldproof.reports.assemble.causes import waived_text
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.side_by_side.comparable_runs import comparable_groups, differences, notes
from coldproof.reports.side_by_side.matrix import EngineMatrix, Row
from coldproof.reports.views.requirements import main_figures, verdict_class
from coldproof.reports.views.run_facts import traits

TEMPLATES = PageTemplates(
    folders=(Path(__file__).parent / "templates",),
    filters={"main_figures": main_figures, "waived_text": waived_text},
)


def render_matrix(lineup: EngineMatrix) -> str:
    """Return the page as one HTML document. Reads only templates, and no clock."""
    return TEMPLATES.page(
        "side_by_side.html.j2",
        styles=("style.css", "matrix.css", "side_by_side.css"),
        scripts=("script.js",),
        lineup=lineup,
        matrix=lineup,
        found=lineup.verdicts,
        filtered="rows",
        traits=traits,
        kinds=verdict_classes,
        together=comparable_groups(lineup.columns),
        notes=notes(lineup.columns),
        differences=differences(lineup.columns),
    )


def verdict_classes(row: Row) -> str:
    """Return the CSS classes of a row's verdicts. The filter shows a row while one of them is selected."""
    return " ".join(map(verdict_class, row.verdicts))
