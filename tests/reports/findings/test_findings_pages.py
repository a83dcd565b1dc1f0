"""The pages of the findings: docs/findings.md follows from the records, and the HTML page is readable and inert."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser
from support.browsing import a_browser, assert_it_fits_every_screen, pages_of, serious_violations
from support.nightly import with_samples
from support.paths import ROOT
from support.report_samples import HOSTILE, SCRIPT

from coldproof.harness.case.finding_records import read_records
from coldproof.harness.cli.findings import titles
from coldproof.harness.schema.findings import FindingStatus
from coldproof.reports.findings.markdown import findings_markdown
from coldproof.reports.findings.page import render_findings
from coldproof.reports.findings.tables import headline

RECORDS = list(read_records().values())
PAGE = ROOT / "docs" / "findings.md"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for the tests of this file."""
    with a_browser() as found:
        yield found


def test_the_page_of_the_documentation_is_what_the_records_give() -> None:
    """`coldproof findings --markdown docs/findings.md` writes the page."""
    assert PAGE.read_text() == findings_markdown(RECORDS, titles())


def test_links_lead_to_folders_and_sections_that_exist() -> None:
    """Anchors are those that Markdown renderers make from headings."""
    text = findings_markdown(RECORDS, titles())
    for record in RECORDS:
        assert f"### {record.id}\n" in text
        assert f"(#{record.id.replace('/', '')})" in text
        assert (f"(../findings/{record.id})" in text) is (record.no_case is None)
        assert (ROOT / "findings" / record.id).is_dir()


def test_the_headline_counts_by_status() -> None:
    """Each root cause is counted once."""
    one = RECORDS[0]
    records = [
        msgspec.structs.replace(one, engine=engine, status=status)
        for engine, status in (("a", FindingStatus.NEW), ("a", FindingStatus.FIXED), ("b", FindingStatus.NEW))
    ]
    assert headline(records) == "3 root causes in 2 projects: 2 new, 1 fixed"


def test_the_page_shows_every_finding_and_text_is_inert() -> None:
    """A record may quote an engine's output."""
    page = render_findings(RECORDS, titles(), version="1")
    assert all(page.count(record.id) >= 2 for record in RECORDS)
    hostile = msgspec.structs.replace(RECORDS[0], title=HOSTILE, cause=HOSTILE, rate=HOSTILE, no_case=HOSTILE)
    assert SCRIPT not in render_findings([hostile], titles(), version="1")


@pytest.mark.parametrize("scheme", with_samples(["light", "dark"], "light"))
def test_the_page_is_readable_in_a_browser(browser: Browser, tmp_path: Path, scheme: str) -> None:
    """The page loads nothing and fits desktop and phone, and axe-core finds no serious violation."""
    with pages_of(browser, tmp_path) as opened:
        page = opened(render_findings(RECORDS, titles(), version="1"), color_scheme=scheme)
        assert page.locator("article").count() == len(RECORDS)
        assert serious_violations(page) == []
        assert_it_fits_every_screen(page, tmp_path / "page.png")
