"""Renders the results of a run as index.html, one self-contained page. The page loads no other file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from coldproof.harness.schema.results import Results
from coldproof.reports.assemble.causes import cause_key, cause_summary, fingerprint
from coldproof.reports.assemble.pairs import pairs_summary
from coldproof.reports.assemble.reach import reach_summary
from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.run_report.case import cached_token_bounds
from coldproof.reports.run_report.case import view as caseview
from coldproof.reports.run_report.case.adapter_spans import change_texts
from coldproof.reports.run_report.case.prompt_bars import segments_text
from coldproof.reports.run_report.cause_sections import case_anchors, cause_sections, worst_of
from coldproof.reports.run_report.run_section.view import run_view
from coldproof.reports.views import overview, reach, switches
from coldproof.reports.views import requirements as requirementview
from coldproof.reports.views.cause_view import SIGN
from coldproof.reports.views.causes import cause_views
from coldproof.reports.views.requirements import main_figures
from coldproof.reports.views.untested import untested
from coldproof.reports.views.verdict_sentence import verdict_sentence
from coldproof.reports.views.weight_updates import update_matrix

LARGEST = 1_500_000  # bytes of the page, so that it opens at once and can be sent by mail
_LINES = 24  # causes that are not folded: with a matrix of sixty requirements, this makes six screens
# Causes whose best case is drawn in full; on a page that would be too large, as many as fit.
_DRAWN = (40, 20, 10, 5, 2, 1, 0)
LAYER_ABOUT = {
    "exact": "in process, with a worker that computes digests: every wrong block changes the answer",
    "model": "in process, with a neural network: where numbers matter",
    "server": "the real server over HTTP: what only exists there, and a sample of everything",
}
_FILES = ("results.json", "summary.md", "junit.xml", "ctrf.json", "badge.svg")  # in the folder of the page


def render_html(results: Results) -> str:
    """Return the report as one HTML document. The output depends on the results only, not on the current time."""
    page = ""
    for drawn in _DRAWN:
        page = _rendered(results, drawn)
        if len(page.encode("utf-8", "replace")) <= LARGEST:
            break
    return page


def compile_templates() -> None:
    """Compile the templates of the page, which takes ten times as long as to render it: once for many forks."""
    environment = TEMPLATES.environment
    for name in environment.list_templates(["j2"]):
        environment.get_template(name)


def _rendered(results: Results, drawn: int) -> str:
    """Return the page with the best cases of this many causes in full."""
    found = cause_views(results)
    causes = cause_sections(found, drawn=drawn)
    requirements = requirementview.requirement_views(results.requirements)
    return TEMPLATES.page(
        "index.html.j2",
        styles=("style.css", "matrix.css", "case.css", "causes.css", "run.css", "reach.css"),
        scripts=("script.js",),
        results=results,
        sentence=verdict_sentence(results, found),
        causes=causes,
        worst=worst_of(causes),
        untested=untested(results),
        requirements=requirements,
        failures=requirementview.failures(results.requirements),
        matrix=requirementview.matrix(requirements),
        weight_updates=update_matrix(results),
        requirement_anchors={view.requirement.id: view.anchor for view in requirements},
        found=[verdict for verdict, count in overview.counts(results) if count],
        filtered="rows",
        folds=True,
        run=run_view(results),
        run_files=_FILES,
        anchors=case_anchors(causes),
        invalid=bool(overview.failed_selftests(results)),
    )


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
        "added": switches.added,
        "cell_figures": requirementview.cell_figures,
        "main_figures": main_figures,
        "now_testable": switches.now_testable,
        "fingerprint": fingerprint,
        "cause_key": cause_key,
        "cause_summary": cause_summary,
        "waivers_by_use": overview.waivers_by_use,
        "pairs_summary": pairs_summary,
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
        "most_causes": _LINES,
        "severity_sign": SIGN,
        "change_texts": change_texts,
        "segments_text": segments_text,
    },
)
