"""Renders the results of a run as index.html, one self-contained page. The page loads no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.results import Results
from coldproof.reports.assemble import causes
from coldproof.reports.assemble.reach import reach_summary
from coldproof.reports.format.text import file_link
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.run_report.case import cached_token_bounds
from coldproof.reports.run_report.case import view as caseview
from coldproof.reports.run_report.case.adapter_spans import change_texts
from coldproof.reports.run_report.case.prompt_bars import segments_text
from coldproof.reports.run_report.run_section.view import run_view
from coldproof.reports.views import overview, reach
from coldproof.reports.views import requirements as requirementview
from coldproof.reports.views.requirements import main_figures
from coldproof.reports.views.weight_updates import update_matrix

_UNFOLDED = 3  # the first cases are open, all others are folded
_DRAWN = 100  # cases with all charts: 4 MB; a page with a thousand would be ten times as large
LAYER_ABOUT = {
    "exact": "in process, with a worker that computes digests: every wrong block changes the answer",
    "model": "in process, with a neural network: where numbers matter",
    "server": "the real server over HTTP: what only exists there, and a sample of everything",
}
_FILES = ("results.json", "summary.md", "junit.xml", "badge.svg")  # in the folder of the page


def render_html(results: Results) -> str:
    """Return the report as one HTML document. The output depends on the results only, not on the current time."""
    drawn, listed = drawn_and_listed(overview.ordered_cases(results.cases), most=_DRAWN)
    cases = caseview.case_views(drawn, unfolded=_UNFOLDED)
    requirements = requirementview.requirement_views(results.requirements)
    return TEMPLATES.page(
        "index.html.j2",
        styles=("style.css", "matrix.css", "case.css", "run.css", "reach.css"),
        scripts=("script.js",),
        results=results,
        cases=cases,
        linked=[(view.case, f"#{view.anchor}") for view in cases]
        + [(case, file_link("cases", f"{case.id}.md")) for case in listed],
        requirements=requirements,
        matrix=requirementview.matrix(requirements),
        weight_updates=update_matrix(results),
        requirement_anchors={view.requirement.id: view.anchor for view in requirements},
        found=[verdict for verdict, count in overview.counts(results) if count],
        filtered="rows and cases",
        causes=results.causes,
        run=run_view(results),
        run_files=_FILES,
        anchors={view.case.id: view.anchor for view in reversed(cases)},
        invalid=bool(overview.failed_selftests(results)),
    )


def drawn_and_listed(cases: list[Case], *, most: int) -> tuple[list[Case], list[Case]]:
    """Return the cases to draw in full, at most `most`, and the cases to list only. Both keep the order.

    The first case of each cause is drawn before further cases of any cause.
    """
    first: dict[str, int] = {}
    for index, case in enumerate(cases):
        first.setdefault(causes.cause_key(case), index)
    others = (index for index in range(len(cases)) if index not in first.values())
    drawn = set([*first.values(), *others][:most])
    return [c for i, c in enumerate(cases) if i in drawn], [c for i, c in enumerate(cases) if i not in drawn]


def _shown_capabilities(capabilities: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Return name, state and evidence of each capability. A capability that was not probed is unknown."""
    states: dict[object, str] = {True: "supported", False: "unsupported"}
    return [
        (name, states.get(facts.get("present"), "unknown"), str(facts.get("evidence") or ""))
        for name, facts in sorted(capabilities.items())
    ]


_HERE = Path(__file__).parent
TEMPLATES = PageTemplates(
    folders=(_HERE / "templates", _HERE / "case" / "templates", _HERE / "run_section"),
    filters={
        "main_figures": main_figures,
        "fingerprint": causes.fingerprint,
        "cause_key": causes.cause_key,
        "cause_summary": causes.cause_summary,
        "waived_text": causes.waived_text,
        "reach_by_requirement": reach.by_requirement,
        "reach_level": reach.level,
        "reach_summary": reach_summary,
        "shown_capabilities": _shown_capabilities,
    },
    values={
        "caseview": caseview,
        "layer_about": LAYER_ABOUT,
        "column_about": requirementview.COLUMN_ABOUT,
        "bounds": cached_token_bounds,
        "change_texts": change_texts,
        "segments_text": segments_text,
    },
)
