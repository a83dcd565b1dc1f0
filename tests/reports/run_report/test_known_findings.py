"""The report's section about the known findings that a run replayed first."""

from __future__ import annotations

import pytest
from support.browsing import a_browser, assert_it_fits_every_screen, pages_of, serious_violations
from support.report_samples import HOSTILE, SCRIPT, case, results, waiver

from coldproof.harness.schema.findings import FindingReplay, ReplayResult
from coldproof.reports.run_report.run_report import render_html

FIXED = FindingReplay(
    finding="vllm/fixed-before",
    requirement="LORA-1",
    cell="default",
    layer="exact",
    result=ReplayResult.FAILS,
    words="Request 1 differs from the cold answer",
    seconds=0.2,
    regression=True,
)
GONE = FindingReplay(
    finding="vllm/gone-now", requirement="EVENT-5", cell="events", result=ReplayResult.PASSES, seconds=1.5
)


def test_the_section_lists_each_replay_and_marks_a_regression() -> None:
    """Each replay has its place in the run, and the page links to the section."""
    page = render_html(results(case(), findings=[FIXED, GONE]))
    section = page.partition('<section id="known-findings"')[2].partition("</section>")[0]
    assert 'href="#known-findings">Known findings (2)</a>' in page
    assert "vllm/fixed-before" in section
    assert "LORA-1, cell default of layer exact" in section
    assert "still there, although it is recorded as fixed" in section
    assert section.count("although") == 1
    assert "EVENT-5, cell events<" in section
    assert ">gone<" in section


def test_a_run_without_replays_has_no_such_section() -> None:
    """The page has no link to the section either."""
    assert "known-findings" not in render_html(results(case()))


def test_a_waiver_shows_the_message_that_it_matches() -> None:
    """Two crashes of the same requests differ only by these words in report, terminal and summary."""
    waived = waiver("used", says="KeyError: <b>")
    assert waived.scope == "CHAT-2|lost reuse|*, saying KeyError: <b>"
    assert "says: KeyError: &lt;b&gt;" in render_html(results(case(), waivers=[waived]))
    assert "says: " not in render_html(results(case(), waivers=[waiver("used")]))


def test_a_waiver_names_its_finding() -> None:
    """The finding is below the waiver's reason and link."""
    page = render_html(results(case(), waivers=[waiver("used", finding="vllm/known-cause")]))
    assert "finding vllm/known-cause" in page
    assert "finding vllm/" not in render_html(results(case(), waivers=[waiver("used")]))


def test_messages_of_an_engine_are_inert() -> None:
    """The message of a failure comes from the engine."""
    hostile = FindingReplay(
        finding="a/b", requirement="X-1", cell=HOSTILE, result=ReplayResult.OTHERWISE, words=HOSTILE
    )
    assert SCRIPT not in render_html(results(case(), findings=[hostile]))


@pytest.mark.nightly
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_section_is_readable_in_a_browser(tmp_path_factory: pytest.TempPathFactory, scheme: str) -> None:
    """The section fits desktop and phone."""
    folder = tmp_path_factory.mktemp(scheme)
    with a_browser() as browser, pages_of(browser, folder) as opened:
        page = opened(results(case(), findings=[FIXED, GONE]), color_scheme=scheme)
        assert page.locator("#known-findings").count() == 1
        assert serious_violations(page) == []
        assert_it_fits_every_screen(page, folder / "page.png")
