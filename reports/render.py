"""results.json in, one self-contained HTML page out.

Invariants: the same results give the same bytes; nothing is loaded from anywhere; every value passes through `visible`
and is escaped, because prompts, answers, names and logs are an engine's and not ours. The only text let through as it
is are our own style sheet and script, and the page's content policy allows just these two by hash.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup

from reports import bounds, caseview, causes, fleet, names, overview, promptbars, requirementview, text, waivers
from reports.runview import run_view
from reports.schema import VERDICT_MEANING, Case, RequirementResult, Results, Verdict
from reports.text import file_link

_TEMPLATES = Path(__file__).parent / "templates"
_UNFOLDED = 3  # with more cases than this the page is a list first and detail on demand
_DRAWN = 100  # cases with all their pictures: 4 MB; the page of a thousand would be ten times as large
_LINKED = 3  # links to cases in one row of the table
_STYLES = ("style.css", "matrix.css", "case.css", "run.css")
_FILES = ("results.json", "summary.md", "junit.xml", "badge.svg")  # beside the page
_FIGURES = 3  # evidence figures in one row of the table


def render_html(results: Results) -> str:
    """The report as one HTML document. Does no I/O but reading its own templates, and reads no clock."""
    drawn, listed = told_and_listed(overview.ordered_cases(results.cases), most=_DRAWN)
    cases = caseview.case_views(drawn, unfolded=_UNFOLDED)
    requirements = requirementview.requirement_views(results.requirements)
    return page(
        "index.html.j2",
        Markup("").join(own(sheet) for sheet in _STYLES),
        own("script.js"),
        results=results,
        cases=cases,
        listed=[(case, file_link("cases", f"{case.id}.md")) for case in listed],
        requirements=requirements,
        matrix=requirementview.matrix(requirements),
        found=[verdict for verdict, count in overview.counts(results) if count],
        filtered="rows and cases",
        causes=causes.causes_of(results),
        run=run_view(results),
        run_files=_FILES,
        anchors={view.case.id: view.anchor for view in reversed(cases)},
        invalid=bool(overview.missed(results)),
    )


def told_and_listed(cases: list[Case], *, most: int) -> tuple[list[Case], list[Case]]:
    """The cases that get a section of their own and those that are only listed: one of each cause goes before any other
    of it. Both stay in order.
    """
    first: dict[str, int] = {}
    for place, case in enumerate(cases):
        first.setdefault(causes.fingerprint(case.signature), place)
    others = (place for place in range(len(cases)) if place not in first.values())
    told = set([*first.values(), *others][:most])
    return [c for i, c in enumerate(cases) if i in told], [c for i, c in enumerate(cases) if i not in told]


def page(template: str, style: str, script: str = "", **shown: object) -> str:
    """One self-contained document of a template, with a policy that allows this style and script and nothing else."""
    policy = content_policy(style=style, script=script)
    return environment().get_template(template).render(style=style, script=script, policy=policy, **shown)


def content_policy(*, style: str, script: str) -> str:
    """A Content-Security-Policy that allows exactly these two and no other style, script, image or connection."""
    return (
        f"default-src 'none'; style-src '{_digest(style)}'; script-src '{_digest(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )


def _digest(content: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()


def own(name: str) -> Markup:
    """A file of ours as it is. Never called on data."""
    return Markup((_TEMPLATES / name).read_text(encoding="utf-8"))


@functools.cache
def environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        finalize=_finalize,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(_filters())
    environment.globals.update(
        glyph=overview.GLYPH,
        worst_first=overview.WORST_FIRST,
        verdict_meaning=VERDICT_MEANING,
        exit_meaning=overview.EXIT_MEANING,
        overview=overview,
        verdict_of=Verdict,
        caseview=caseview,
        bounds=bounds,
        changes_in_words=names.changes_in_words,
        segments_in_words=promptbars.segments_in_words,
    )
    return environment


def _finalize(value: Any) -> Any:
    """Applied by jinja2 to every expression, so that no template can forget it. Ours (Markup) passes as it is."""
    return text.visible(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _filters() -> dict[str, Callable[..., object]]:
    return {
        "number": text.number,
        "duration": text.duration,
        "moment": text.moment,
        "day_and_time": text.day_and_time,
        "token_text": text.token_text,
        "tail": text.tail,
        "one_line": text.one_line,
        "web_link": text.web_link,
        "slug": text.slug,
        "report_name": text.report_name,
        "areas": requirementview.areas,
        "kind": verdict_class,
        "in_order": _in_order,
        "main_figures": main_figures,
        "linked_cases": _linked_cases,
        "fingerprint": causes.fingerprint,
        "counted": causes.counted,
        "waived_in_words": causes.waived_in_words,
        "state_in_words": waivers.state_in_words,
        "shown_capabilities": _shown_capabilities,
        "fleet_rows": fleet.fleet_rows,
        "fleet_link": fleet.fleet_link,
        "seconds_of": _seconds_of,
    }


def verdict_class(verdict: Verdict) -> str:
    """The CSS class of a verdict."""
    return f"v-{verdict.name.lower().replace('_', '-')}"


def _in_order(mapping: dict[str, Any]) -> list[tuple[str, Any]]:
    """By key: results read back from a file have sorted keys, and must give the same page as those in memory."""
    return sorted(mapping.items())


def main_figures(requirement: RequirementResult) -> list[tuple[str, float]]:
    """The evidence for the table's row: what the requirement cannot do without, else the first that are not zero.

    What is zero goes first where it is the reason for the verdict.
    """
    needed = [(name, requirement.evidence[name]) for name in requirement.needed if name in requirement.evidence]
    if not needed:
        needed = [figure for figure in sorted(requirement.evidence.items()) if figure[1]][:_FIGURES]
    if requirement.verdict is Verdict.NOT_EXERCISED:
        needed.sort(key=lambda figure: figure[1] != 0)
    return needed


def _linked_cases(requirement: RequirementResult) -> tuple[list[str], int]:
    """The cases to link from the table's row, and how many more there are."""
    return requirement.cases[:_LINKED], max(0, len(requirement.cases) - _LINKED)


def _seconds_of(requirement: RequirementResult) -> float:
    return sum(cell.seconds for cell in requirement.cells)


def _shown_capabilities(capabilities: dict[str, dict[str, Any]]) -> list[tuple[str, str, str]]:
    """Name, state and evidence; what the adapter could not find out is unknown, never taken for absent."""
    return [
        (name, _presence(facts.get("present")), str(facts.get("evidence") or ""))
        for name, facts in sorted(capabilities.items())
    ]


def _presence(present: object) -> str:
    return "supported" if present is True else "unsupported" if present is False else "unknown"
