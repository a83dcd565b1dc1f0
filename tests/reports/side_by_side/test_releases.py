"""The page of several releases: each change of a verdict is marked and listed, with its case and its cause."""

from __future__ import annotations

from typing import Any

from support import report_samples as samples
from support.page import Page
from support.side_by_side_samples import run, source

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import Verdict
from coldproof.reports.side_by_side.columns import Explanation, Source, columns
from coldproof.reports.side_by_side.kinds import RELEASES
from coldproof.reports.side_by_side.markdown import side_by_side_markdown
from coldproof.reports.side_by_side.matrix import Made, SideBySide, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side
from coldproof.reports.side_by_side.violations import causes

V, C, N = Verdict.VIOLATED, Verdict.CONFORMS, Verdict.NOT_EXERCISED


def release(version: str, *verdicts: Verdict, **changes: Any) -> Source:
    """A release with these verdicts on R-1, R-2, ...; a violated one has a case."""
    rows = {f"R-{number}": verdict for number, verdict in enumerate(verdicts, start=1)}
    results = run(
        version=version,
        requirements=[
            samples.requirement(name, "answers as cold", samples.cell(verdict=v)) for name, v in rows.items()
        ],
        cases=[case(f"{name}-{version}", requirement=name) for name, verdict in rows.items() if verdict is V],
    )
    folder = f"runs/{version}"
    given = {"label": version, "cases": f"{folder}/cases", **changes}
    return source(results, f"{folder}/index.html", folder, **given)


def case(name: str, **changes: Any) -> Case:
    """A counterexample that fails as all the others do."""
    return samples.case(name, signature="stale state", **changes)


def explained(version: str, *verdicts: Verdict) -> Source:
    """A release with a known cause for its cases."""
    known = {f"R-{number}-{version}": Explanation("no tag", "https://example.org/7") for number in (1, 2)}
    return release(version, *verdicts, explained=known)


def history(*sources: Source, **changes: Any) -> SideBySide:
    """The history of these releases."""
    return side_by_side(sources, RELEASES, Made(command="coldproof history", file="history.json", **changes))


def test_the_page_marks_and_lists_a_change() -> None:
    """With the case of the release that is violated, and what could not be installed."""
    shown = history(
        release("1.0", V, C), release("2.0", C, C), release("2.1", C, C), missing=("3.0: not installed: no wheel",)
    )
    html = render_side_by_side(shown)
    page = Page(html)
    assert shown.headline == "NO NEW FAILURES — 1 fixed"
    assert "VIOLATED on 1.0 → ✓ CONFORMS on 2.0" in page.text
    links = set(page.attributes("href"))
    assert {"runs/1.0/cases/R-1-1.0.json", "runs/2.0/index.html", "history.json"} <= links
    assert not [link for link in links if not link.startswith(("#", "runs/", "history.json"))]
    assert "3.0: not installed: no wheel" in page.text
    assert html.count('<td class="v-conforms changed">') == 1
    assert "INTERRUPTED" not in page.text
    assert "INTERRUPTED" in render_side_by_side(history(release("1.0", V), complete=False))


def test_what_stays_the_same_is_no_change_of_a_history() -> None:
    """A violation of ten releases stands in the matrix, and not ten times in the list of changes."""
    shown = history(release("1.0", V), release("2.0", V), release("3.0", V))
    assert shown.changes == []
    assert "No requirement changed." in render_side_by_side(shown)


def test_every_violation_is_under_its_cause() -> None:
    """One cause has cases of several releases and requirements; those without a known one come first."""
    shown = columns([explained("1.0", V, V), explained("2.0", V, C), release("3.0", C, V)])
    unknown, known = causes(shown)
    assert (known.known, known.reason, known.link) == (True, "no tag", "https://example.org/7")
    assert (known.requirements, known.runs) == (["R-1", "R-2"], ["1.0", "2.0"])
    assert [one.case.id for one in known.violations] == ["R-1-1.0", "R-2-1.0", "R-1-2.0"]
    assert (unknown.known, unknown.requirements, unknown.runs) == (False, ["R-2"], ["3.0"])
    assert unknown.reason == "R-2: stale state"


def test_unknown_causes_are_not_taken_for_one() -> None:
    """Each requirement that fails in its own way stands alone; a waived case has the reason of its known issue."""
    assert [one.requirements for one in causes(columns([release("1.0", V, V)]))] == [["R-1"], ["R-2"]]
    waived = source(samples.results(samples.case(known_issue="keyed by path")))
    assert [(one.known, one.reason) for one in causes(columns([waived]))] == [(True, "keyed by path")]


def test_the_page_lists_each_case_with_its_cause_and_report() -> None:
    """And says which ones nothing explains."""
    page = Page(render_side_by_side(history(explained("1.0", V), release("2.0", C, V))))
    assert "R-1 in 1.0" in page.text
    assert "Not explained: R-2 in 2.0" in page.text
    assert "https://example.org/7" in set(page.attributes("href"))
    assert {f"runs/{name}.json" for name in ("1.0/cases/R-1-1.0", "2.0/cases/R-2-2.0")} <= set(page.attributes("href"))
    nothing = "No run has saved a counterexample."
    assert nothing not in page.text
    assert nothing in Page(render_side_by_side(history(release("1.0", C)))).text


def test_a_page_of_many_releases_keeps_its_columns_narrow() -> None:
    """Fourteen releases: the verdicts stay words, and the figures move below."""
    sources = [release(f"0.{number}", C, V if number == 20 else C) for number in range(20, 34)]
    html = render_side_by_side(history(*sources))
    assert 'class="matrix lineup wide"' in html
    table = html.split('<div class="matrix lineup wide"')[1].split("</table>")[0]
    assert table.count("CONFORMS</span>") == 27
    assert "40 examples" not in table
    assert "fixed" in table
    text = side_by_side_markdown(history(*sources))
    assert "VIOLATED on 0.20 → CONFORMS on 0.21" in text
