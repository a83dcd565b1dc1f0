"""Runs side by side in a real browser: filter, keyboard, print, phone, and without scripts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser
from support import report_samples as samples
from support.browsing import a_browser, assert_it_fits_every_screen, focus_stops, pages_of, serious_violations
from support.nightly import with_samples
from support.side_by_side_samples import everything, run, source

from coldproof.reports.side_by_side.kinds import ENGINES, RELEASES
from coldproof.reports.side_by_side.matrix import Made, side_by_side
from coldproof.reports.side_by_side.page import render_side_by_side


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for the tests of this file."""
    with a_browser() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Yield a function that opens a page."""
    with pages_of(browser, tmp_path) as open_page:
        yield open_page


@pytest.fixture(scope="module")
def full() -> str:
    """Return a page with everything that one can have."""
    return render_side_by_side(side_by_side(everything(), ENGINES))


def test_a_row_is_shown_while_one_of_its_verdicts_is(opened: Any, full: str) -> None:
    """Rows are filtered in the matrix and below it, and hidden rows are counted."""
    page = opened(full)
    shown = page.locator("[data-row]:visible")
    both = page.locator("[data-row][data-kind='v-violated v-not-exercised']:visible")
    before = shown.count()
    assert both.count() == 2
    page.locator("form[data-filter] input[value=v-violated]").uncheck()
    assert (both.count(), shown.count()) == (2, before)
    page.locator("form[data-filter] input[value=v-not-exercised]").uncheck()
    assert both.count() == 0
    assert page.locator("output").inner_text() == f"{before - shown.count()} rows hidden"
    page.get_by_role("button", name="Reset").click()
    page.wait_for_function("document.querySelector('output').textContent === ''")
    page.get_by_label("Area").select_option("salt")
    assert (shown.count(), page.locator("[data-row][data-area=salt]:visible").count()) == (2, 2)


def test_ids_link_to_statements_and_links_show_filtered_rows(opened: Any, full: str) -> None:
    """The page behaves like the report of a run."""
    page = opened(full)
    page.locator("form[data-filter] input[value=v-known-issue]").uncheck()
    row = page.locator("#requirement-lora-10")
    assert not row.is_visible()
    page.evaluate("location.hash = 'requirement-lora-10'")
    row.wait_for(state="visible")
    page.locator(".matrix a[href='#requirement-lora-1']").click()
    page.wait_for_function("Math.abs(document.getElementById('requirement-lora-1').getBoundingClientRect().top) < 40")


def test_the_keyboard_reaches_everything(opened: Any, full: str) -> None:
    """Filters, verdicts and folds can be reached, and Enter opens a fold."""
    page = opened(full)
    assert {"A", "BUTTON", "INPUT checkbox", "INPUT search", "SUMMARY", "DIV"} <= focus_stops(page, 90)
    fold = page.locator("details.result").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.evaluate("fold => fold.open")


def test_the_page_is_readable_without_scripts(opened: Any, full: str) -> None:
    """All content is visible, and no control is shown that would do nothing."""
    page = opened(full, java_script_enabled=False)
    assert page.locator("[data-row]:visible").count() == page.locator("[data-row]").count()
    assert page.locator("button:visible, form:visible").count() == 0
    assert "2 distinct counterexamples" in page.locator("#requirement-lora-1").inner_text()
    page.locator("details.result summary").first.click()
    assert page.locator("details.result dl").first.is_visible()


def test_printing_opens_every_fold(opened: Any, full: str) -> None:
    """A fold on paper cannot be opened."""
    page = opened(full)
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.locator("details:not([open])").count() == 0


@pytest.mark.parametrize("engines", with_samples([1, 4, 9], 9))
def test_no_screen_scrolls_sideways(opened: Any, tmp_path: Path, engines: int) -> None:
    """Wider tables scroll on their own."""
    sources = [*everything(), *(source(run(f"engine {place}")) for place in range(5))]
    assert_it_fits_every_screen(
        opened(render_side_by_side(side_by_side(sources[:engines], ENGINES))), tmp_path / "page.png"
    )


def test_hostile_text_runs_nothing(opened: Any) -> None:
    """The fixture checks that there is no dialog, message or request."""
    bad = samples.poisoned(samples.HOSTILE)
    page = opened(render_side_by_side(side_by_side([source(bad), source(run(), "", samples.HOSTILE)], ENGINES)))
    assert page.locator("main img, main iframe, main script").count() == 0
    assert samples.SCRIPT in page.locator("body").evaluate("body => body.textContent")


@pytest.mark.parametrize("scheme", with_samples(["light", "dark"], "light"))
@pytest.mark.parametrize("width", with_samples([1300, 390], 1300))
def test_axe_finds_nothing_serious(opened: Any, full: str, scheme: str, width: int) -> None:
    """Contrast, names, headings and tables are checked with every fold open."""
    for shown in (full, series()):
        page = opened(shown, color_scheme=scheme, viewport={"width": width, "height": 900})
        assert serious_violations(page) == []


def series() -> str:
    """Releases with changes, causes, a command, and one that could not be installed."""
    good = run(requirements=[samples.requirement("LORA-1", "reload", samples.cell("hybrid"), samples.cell())])
    releases = [
        source(samples.results(samples.case()), label="1.0", cases="x/cases", said=("Said.",), command="coldproof x"),
        source(good, label="2.0"),
        source(samples.results(samples.case(signature="another")), label="3.0"),
    ]
    made = Made(headline="vLLM", command="coldproof history", file="history.json", missing=("4.0: not installed",))
    return render_side_by_side(side_by_side(releases, RELEASES, made))


def test_changes_are_readable_without_scripts_and_in_the_hand(opened: Any, tmp_path: Path) -> None:
    """A verdict that changed says so in its square."""
    page = opened(series(), java_script_enabled=False)
    lora = page.locator(".matrix tr[data-twin=requirement-lora-1]")
    assert lora.locator(".change").all_inner_texts() == ["fixed", "newly violated"]
    assert_it_fits_every_screen(page, tmp_path / "page.png")
