"""A page of very many cases stays small: one case of each cause is drawn first, and all cases are listed."""

from __future__ import annotations

import pytest
from support import report_samples
from support.page import Page

from coldproof.harness.schema.case import Case
from coldproof.reports.run_report.run_report import drawn_and_listed, render_html


def cases(*signatures: str) -> list[Case]:
    """Return cases with these signatures, named by their position."""
    return [report_samples.case(id=f"LORA-1-{i:08d}", signature=s) for i, s in enumerate(signatures)]


@pytest.mark.parametrize(
    ("signatures", "most", "shown"),
    [
        ("aab", 5, [0, 1, 2]),
        ("aaab", 2, [0, 3]),
        ("aaabb", 3, [0, 1, 3]),
        ("abc", 2, [0, 1]),
        ("", 3, []),
    ],
)
def test_each_cause_is_shown_before_any_is_shown_twice(signatures: str, most: int, shown: list[int]) -> None:
    """Cases keep their order, and none is lost."""
    given = cases(*signatures)
    drawn, listed = drawn_and_listed(given, most=most)
    assert [given.index(case) for case in drawn] == shown
    assert sorted([*drawn, *listed], key=given.index) == given


def test_what_is_not_drawn_is_listed_with_its_file_and_the_page_says_so() -> None:
    """Of 103 cases of one cause, three link to their reports instead of to a section."""
    given = cases(*["a"] * 103)
    html = render_html(report_samples.results(*given))
    page = Page(html)
    assert "103 saved cases" in page.text
    assert "100 of them are shown in detail below, if possible at least one of each cause" in page.text
    links = list(page.attributes("href"))
    for case in given:
        drawn = given.index(case) < 100
        assert (f"#case-{case.id.lower()}" in {link.lower() for link in links}) is drawn
        assert (f"cases/{case.id}.md" in links) or drawn
    assert len(html) < 10_000_000
