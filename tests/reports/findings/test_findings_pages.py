"""The pages of the findings: docs/findings.md follows from the records, and the HTML page is readable and inert."""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from playwright.sync_api import Browser
from support.browsing import a_browser, assert_it_fits_every_screen, pages_of, serious_violations
from support.paths import ROOT
from support.report_samples import HOSTILE, SCRIPT

from coldproof.harness.case.finding_records import read_records, scripted
from coldproof.harness.cli.findings import titles
from coldproof.harness.schema.findings import Contract, FindingRecord, FindingStatus, Hit, Search, Severity
from coldproof.reports.findings.markdown import findings_markdown
from coldproof.reports.findings.page import render_findings
from coldproof.reports.findings.tables import count_table, counts_in_words, headline, ranked

RECORDS = list(read_records().values())
PAGE = ROOT / "docs" / "findings.md"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for the tests of this file."""
    with a_browser() as found:
        yield found


def test_the_page_of_the_documentation_is_what_the_records_give() -> None:
    """`coldproof findings --markdown docs/findings.md` writes the page."""
    assert PAGE.read_text() == findings_markdown(RECORDS, titles(), scripted(RECORDS))


def test_links_lead_to_folders_and_sections_that_exist() -> None:
    """Anchors are those that Markdown renderers make from headings."""
    text = findings_markdown(RECORDS, titles())
    for record in RECORDS:
        assert f"### {record.id}\n" in text
        assert f"(#{record.id.replace('/', '')})" in text
        assert (f"(../findings/{record.id})" in text) is (record.no_case is None)
        assert (ROOT / "findings" / record.id).is_dir()


COUNTED = [
    msgspec.structs.replace(RECORDS[0], id=f"{engine}/{number}", engine=engine, severity=severity, status=status)
    for number, (engine, severity, status) in enumerate(
        [
            ("b", Severity.REMARK, FindingStatus.BY_DESIGN),
            ("a", Severity.CRASH_OR_HANG, FindingStatus.NEW),
            ("b", Severity.FOREIGN_DATA, FindingStatus.REPORTED),
            ("a", Severity.CRASH_OR_HANG, FindingStatus.NEW),
            ("b", Severity.FOREIGN_DATA, FindingStatus.NEW),
        ]
    )
]


def test_the_counts_leave_out_remarks() -> None:
    """Each root cause is counted once by severity and once by status, and a remark is no root cause."""
    assert headline(COUNTED) == "4 root causes and 1 remark in 2 projects"
    assert headline(COUNTED[1:2]) == "1 root cause in 1 project"
    assert counts_in_words(COUNTED) == (
        "By severity: 2 foreign data, 2 crash or hang",
        "By status: 3 new, 1 reported",
    )
    assert counts_in_words(COUNTED[:1]) == ("By severity: none", "By status: none")


def test_the_table_counts_every_finding_by_severity_and_status() -> None:
    """It has sums, and neither a row nor a column without a finding."""
    assert count_table(COUNTED) == (
        ["severity", "new", "reported", "by design", "all"],
        [
            ["foreign data", "1", "1", "", "2"],
            ["crash or hang", "2", "", "", "2"],
            ["remark", "", "", "1", "1"],
            ["all", "3", "1", "1", "5"],
        ],
    )


def test_the_list_begins_with_the_most_severe() -> None:
    """Those of one severity are sorted by status, then by id."""
    assert [one.id for one in ranked(COUNTED)] == ["b/4", "b/2", "a/1", "a/3", "b/0"]


def test_the_counts_of_the_page_are_those_of_the_records() -> None:
    """The first lines and the table say how many records of each kind there are."""
    text = findings_markdown(RECORDS, titles())
    for severity in {one.severity for one in RECORDS}:
        found = [one for one in RECORDS if one.severity is severity]
        assert re.search(rf"(?m)^\| {severity.value} \|.*\| {len(found)} \|$", text)
        assert len(re.findall(rf"(?m)^\| {severity.value} \| [a-z ]+ \| \[", text)) == len(found)
    for status in {one.status for one in RECORDS if one.is_root_cause}:
        count = sum(one.status is status for one in RECORDS if one.is_root_cause)
        assert re.search(rf"(?m)^\* By status: (?:.*, )?{count} {status.value}[,.]", text)


def test_a_finding_shows_its_search_and_its_contract() -> None:
    """Each result of the search is a link, and a quoted sentence cannot become markup."""
    hit = Hit(link="https://github.com/vllm-project/vllm/issues/42125", note="another key")
    record = msgspec.structs.replace(
        RECORDS[0],
        status=FindingStatus.BY_DESIGN,
        upstream=["https://github.com/vllm-project/vllm/pull/1"],
        contract=Contract(sentence=f"Tiers are *kept*. {SCRIPT}", place="a docstring"),
        search=Search(date=datetime.date(2026, 11, 28), queries=["issues: tier reset", "docs: tier"], nearest=[hit]),
    )
    text = findings_markdown([record], titles())
    assert "* Status: by design: [vllm-project/vllm#1](https://github.com/vllm-project/vllm/pull/1)\n" in text
    assert "* Searched on 2026-11-28: *issues: tier reset*; *docs: tier*\n" in text
    assert f"  * [vllm-project/vllm#42125]({hit.link}): another key\n" in text
    assert SCRIPT not in text
    assert "Tiers are \\*kept\\*." in text
    page = render_findings([record], titles(), version="1")
    assert f'<a href="{hit.link}"' in page
    assert SCRIPT not in page


def test_the_page_shows_every_finding_and_text_is_inert() -> None:
    """A record may quote an engine's output."""
    page = render_findings(RECORDS, titles(), version="1")
    assert all(page.count(record.id) >= 2 for record in RECORDS)
    hostile = msgspec.structs.replace(RECORDS[0], title=HOSTILE, cause=HOSTILE, rate=HOSTILE, no_case=HOSTILE)
    assert SCRIPT not in render_findings([hostile], titles(), version="1")


ONE_OF_EACH = list({(one.severity, one.status): one for one in RECORDS}.values())


@pytest.mark.parametrize(
    ("records", "scheme"),
    [
        pytest.param(ONE_OF_EACH, "light", id="one of each severity and status"),
        pytest.param(RECORDS, "dark", id="all", marks=pytest.mark.nightly),
    ],
)
def test_the_page_is_readable_in_a_browser(
    browser: Browser, tmp_path: Path, records: list[FindingRecord], scheme: str
) -> None:
    """The page loads nothing and fits desktop and phone, and axe-core finds no serious violation."""
    with pages_of(browser, tmp_path) as opened:
        page = opened(render_findings(records, titles(), version="1"), color_scheme=scheme)
        assert page.locator("article").count() == len(records)
        assert serious_violations(page) == []
        assert_it_fits_every_screen(page, tmp_path / "page.png")
