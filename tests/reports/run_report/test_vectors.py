"""A case about a pooled answer shows both vectors, their difference and the tolerance."""

from __future__ import annotations

import msgspec
from support import report_samples

from coldproof.harness.case.bug_report import bug_report
from coldproof.harness.schema.case import Case, VectorRow
from coldproof.reports.run_report.case.view import case_view
from coldproof.reports.run_report.run_report import render_html

ROW = VectorRow(
    token=17,
    values=128,
    expected=[0.5, 0.25, -0.125],
    observed=[0.5, 0.3, None],
    largest=0.05,
    cosine=0.58,
    tolerance=1e-4,
)
CASE = report_samples.case(tokens=[], first_difference=17, vector=ROW)


def test_the_values_that_differ_are_marked() -> None:
    """Values are compared by the tolerance, and a value that is not a number differs."""
    assert [one.differs for one in case_view(CASE, "x").values] == [False, True, True]
    assert case_view(report_samples.case(), "x").values == []


def test_the_page_shows_both() -> None:
    """The page has the cosine and the token of the vectors."""
    page = render_html(report_samples.results(CASE))
    for words in ("Vectors of r", "Of token 17", "cosine", "0.580000", "first 3 of 128 values", "0.25", "0.3"):
        assert words in page, words
    assert "Vectors of r" not in render_html(report_samples.results(report_samples.case()))


def test_the_bug_report_shows_both() -> None:
    """The report has the first values of each vector."""
    text = bug_report(CASE, statement="A statement.", environment={})
    assert "observed: `[0.5, 0.3, None]` and 125 more values" in text
    assert "expected (cold start): `[0.5, 0.25, -0.125]`" in text


def test_a_case_with_vectors_survives_its_file() -> None:
    """A value that is no finite number does too."""
    assert msgspec.json.decode(msgspec.json.encode(CASE), type=Case) == CASE
