"""A page of very many cases stays small: one case of each cause is drawn, and the others are listed."""

from __future__ import annotations

import itertools
import re

import pytest
from support import report_samples
from support.page import Page

from coldproof.harness.schema.case import Case
from coldproof.harness.schema.verdict import FailureClass
from coldproof.reports.run_report.cause_sections import MOST_LISTED, cause_sections, worst_of
from coldproof.reports.run_report.run_report import LARGEST, render_html
from coldproof.reports.views.causes import cause_views


def cases(*signatures: str) -> list[Case]:
    """Return cases with these signatures, named by their position."""
    return [report_samples.case(id=f"LORA-1-{i:08d}", signature=s) for i, s in enumerate(signatures)]


@pytest.mark.parametrize(
    ("signatures", "drawn", "shown"),
    [("aab", 5, [1, 1]), ("aaab", 1, [1, 0]), ("abc", 0, [0, 0, 0]), ("", 3, [])],
)
def test_a_cause_shows_its_best_case_and_lists_the_others(signatures: str, drawn: int, shown: list[int]) -> None:
    """No case is lost, and each has an anchor of its own."""
    results = report_samples.results(*cases(*signatures))
    sections = cause_sections(cause_views(results), drawn=drawn)
    assert [int(one.shown is not None) for one in sections] == shown
    ids = [case.id for one in sections for case in one.cause.cases]
    assert sorted(ids) == [case.id for case in results.cases]
    anchors = [row.anchor for one in sections for row in one.others]
    anchors += [one.shown.anchor for one in sections if one.shown is not None]
    assert len(set(anchors)) == len(anchors) == len(ids)


def test_what_is_not_drawn_is_listed_with_its_file() -> None:
    """Of cases of one cause, all but the best link to their bug reports; of very many, the page gives the number."""
    given = cases(*["a"] * (MOST_LISTED + 3))
    html = render_html(report_samples.results(*given))
    links = [link for link in Page(html).attributes("href") if re.fullmatch(r"cases/LORA-1-\d+\.md", link)]
    assert len(set(links)) == MOST_LISTED + 1
    assert "and 2 more cases, in the folder cases/ and in results.json" in html


def test_a_page_of_many_causes_is_no_larger_than_it_may_be() -> None:
    """As many causes as fit have their best case in full; all have a line and a part of their own."""
    crash = {"failure_class": FailureClass.CRASH, "log_tail": "a line of the log\n" * 2000}
    given = [report_samples.case(id=f"LORA-1-{i:08d}", signature=f"s{i}", **crash) for i in range(50)]
    html = render_html(report_samples.results(*given))
    assert len(html.encode()) <= LARGEST
    assert html.count('class="onecause"') == 50
    assert 0 < html.count('class="onecase"') < 50


def test_the_first_screens_show_the_worst_cause_that_nothing_waives() -> None:
    """Known issues have no part there."""
    known = report_samples.case("known", signature="k", known_issue="x", failure_class=FailureClass.CROSS_REQUEST)
    new = report_samples.case("new", signature="n", failure_class=FailureClass.LOST_REUSE)
    for given, shown in itertools.product([[known, new], [known]], [1, 2]):
        worst = worst_of(cause_sections(cause_views(report_samples.results(*given)), drawn=shown))
        assert (worst.shown.case.id if worst is not None else None) == ("new" if new in given else None)
