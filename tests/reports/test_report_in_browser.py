"""The report in a real browser: it can be read, used by keyboard and printed; it loads, sends and runs nothing.

One Chromium serves the whole file. The tests are skipped where none is installed.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page
from support import report_samples as samples
from support.browsing import DESK, a_browser, assert_it_fits_every_screen, focus_stops, pages_of, serious_violations
from support.nightly import with_samples

HOSTILE = (
    f"{samples.SCRIPT}</style></script><style>*{{display:none}}</style>{samples.IMAGE} <b>bold</b> "
    "javascript:alert(1) \x00\x1b[31m\u202egnp.exe\u2066"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Yield one browser for the tests of this file."""
    with a_browser() as found:
        yield found


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Yield a function that opens a run's page."""
    with pages_of(browser, tmp_path) as open_page:
        yield open_page


def texts(page: Page, selector: str) -> list[str]:
    """Return the text of each visible element."""
    return [item.inner_text() for item in page.locator(selector).all() if item.is_visible()]


def test_the_first_screen_has_verdict_counts_and_the_way_on(opened: Any) -> None:
    """The result of the run is visible without scrolling."""
    page = opened(samples.results(samples.case()))
    for selector in ("h1", ".counts", "header .facts-line", "header nav", ".causes .severity", ".causes code"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None, selector
        assert box["y"] + box["height"] < DESK["height"], selector


def test_the_requirements_are_filtered_by_verdict_and_text(opened: Any) -> None:
    """Hidden requirements are counted and can be shown again."""
    page = opened(samples.results(samples.case()))
    rows = page.locator("[data-row]:visible")
    before = rows.count()
    page.locator("form[data-filter] input[value=v-conforms]").uncheck()
    assert page.locator("[data-row].v-conforms:visible").count() == 0
    assert "hidden" in page.locator("output").inner_text()
    page.locator("form[data-filter] input[value=v-conforms]").check()
    assert rows.count() == before
    page.get_by_label("Text").fill("eviction")
    assert 0 < rows.count() < before
    page.get_by_label("Text").fill("")
    assert (rows.count(), page.locator("output").inner_text()) == (before, "")


def test_a_link_to_a_case_opens_its_fold(opened: Any) -> None:
    """The address alone is enough, for example for a link that was sent by mail."""
    first = opened(samples.many(12))
    place = first.locator("section.onecause").last.get_attribute("id")
    page = first.context.new_page()  # to load a page again leaves the reader where he was
    page.goto(f"{first.url}#{place}")
    for there, is_open in ((first, False), (page, True)):
        for fold in ("#cases > details", f"#{place} > details"):
            assert there.locator(fold).evaluate("fold => fold.open") is is_open
    in_sight = "section => Math.abs(section.getBoundingClientRect().top) < window.innerHeight"
    page.wait_for_function(in_sight, arg=page.locator(f"#{place}").element_handle())  # a busy browser scrolls later


def test_a_command_is_copied_as_it_stands(opened: Any) -> None:
    """The button confirms it, and the copied text is the one that is shown."""
    results = samples.results(samples.case())
    page = opened(results, permissions=["clipboard-read", "clipboard-write"])
    page.locator("#run > details > summary").click()
    button = page.get_by_role("button", name="Copy: Repeat this run")
    button.click()
    page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
    assert page.evaluate("navigator.clipboard.readText()") == f"{results.command} --hypothesis-seed={results.seed}"


def test_the_keyboard_reaches_everything(opened: Any) -> None:
    """The skip link comes first, then filters and folds, and Enter opens a fold."""
    page = opened(samples.results(samples.case()))
    assert {"A", "BUTTON", "INPUT checkbox", "INPUT search", "SUMMARY"} <= focus_stops(page, 60)
    fold = page.locator("#run > details")
    fold.locator("> summary").focus()
    page.keyboard.press("Enter")
    assert fold.evaluate("fold => fold.open")


@pytest.mark.parametrize("text", [HOSTILE, samples.HOSTILE])
def test_hostile_text_runs_nothing_and_is_shown_as_written(opened: Any, text: str) -> None:
    """Hostile text in any field causes no dialog, message, request or element."""
    page = opened(samples.poisoned(text))
    assert page.locator("main img, main b b, main iframe, body script").count() == 1  # our own script
    assert page.locator("style").count() == 1
    shown = page.locator("body").evaluate("body => body.textContent")
    assert samples.SCRIPT in shown
    assert "⟨U+202E⟩gnp.exe" in shown
    assert not set("\x00\x1b\u202e\u2066") & set(shown)
    assert page.locator("h1").is_visible()
    assert page.locator("a[href^='javascript:']").count() == 0


def test_a_page_is_readable_without_scripts(opened: Any) -> None:
    """All content is in the page, and no control is shown that would do nothing."""
    results = samples.results(samples.case())
    page = opened(results, java_script_enabled=False)
    assert results.requirements[0].title in page.locator("main").inner_text()
    assert page.locator(".worst .sentence").is_visible()
    assert page.locator("button:visible, form:visible").count() == 0
    fold = page.locator("#run > details")
    fold.locator("> summary").click()
    assert fold.locator("dl, table, p").first.is_visible()


def test_printing_opens_every_fold(opened: Any) -> None:
    """A fold on paper cannot be opened."""
    page = opened(samples.many(5))
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.locator("details:not([open])").count() == 0


@pytest.mark.parametrize("violations", with_samples([0, 1, 50], 1))
def test_no_screen_scrolls_sideways(opened: Any, tmp_path: Path, violations: int) -> None:
    """This holds for desktop and phone, for few and many violations, in both themes."""
    assert_it_fits_every_screen(opened(samples.many(violations)), tmp_path / "page.png")


@pytest.mark.parametrize("scheme", with_samples(["light", "dark"], "light"))
def test_axe_finds_nothing_serious(opened: Any, scheme: str) -> None:
    """axe-core checks contrast, names, headings and tables with every fold open."""
    page = opened(samples.results(samples.case(), samples.case("b", known_issue="x")), color_scheme=scheme)
    assert serious_violations(page) == []
