"""The report in a real browser: it can be read, walked by keyboard and printed; it loads, sends and runs nothing.

One Chromium for the whole file; the tests are skipped where there is none.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from reports.schema import Results
from reports.write import write_all
from tests import report_samples as samples

PHONE, DESK = {"width": 390, "height": 844}, {"width": 1300, "height": 900}
HOSTILE = (
    f"{samples.SCRIPT}</style></script><style>*{{display:none}}</style>{samples.IMAGE} <b>bold</b> "
    "javascript:alert(1) \x00\x1b[31m\u202egnp.exe\u2066"
)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """Debian's Chromium, Google's Chrome or Playwright's own."""
    with sync_playwright() as playwright:
        path = chromium(playwright)
        if path is None:
            pytest.skip("no Chromium is installed: apt-get install chromium, or playwright install chromium")
        opened = playwright.chromium.launch(executable_path=path, args=["--no-sandbox", "--disable-gpu"])
        yield opened
        opened.close()


def chromium(playwright: Playwright) -> str | None:
    """Where a browser is that Playwright can drive."""
    own = playwright.chromium.executable_path
    return shutil.which("chromium") or shutil.which("google-chrome") or (own if Path(own).exists() else None)


class Opened:
    """A page of one run, and whatever it should never have done: dialogs, messages, requests."""

    def __init__(self, browser: Browser, folder: Path, results: Results, **context: Any) -> None:
        write_all(results, folder)
        self.address = (folder / "index.html").as_uri()
        self.context = browser.new_context(**{"viewport": DESK, "color_scheme": "light", **context})
        self.requests: list[str] = []
        self.context.route("**/*", self.pass_or_count)
        self.page = self.context.new_page()
        self.trouble: list[str] = []
        self.page.on("dialog", lambda dialog: (self.trouble.append(dialog.message), dialog.dismiss()))
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.goto(self.address)

    def pass_or_count(self, route: Any) -> None:
        """Only the page itself is let through."""
        if route.request.url.partition("#")[0] == self.address:
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()


@pytest.fixture
def opened(browser: Browser, tmp_path: Path) -> Iterator[Any]:
    """Opens a run's page; what the page did is looked at when the test is over."""
    pages: list[Opened] = []

    def open_page(results: Results, **context: Any) -> Page:
        pages.append(Opened(browser, tmp_path / str(len(pages)), results, **context))
        return pages[-1].page

    yield open_page
    for one in pages:
        one.context.close()
        assert one.trouble == []
        assert one.requests == []


def texts(page: Page, selector: str) -> list[str]:
    """What stands in each visible element."""
    return [item.inner_text() for item in page.locator(selector).all() if item.is_visible()]


def test_the_first_screen_has_verdict_counts_and_the_way_on(opened: Any) -> None:
    """Nobody has to scroll to learn what became of the run."""
    page = opened(samples.results(samples.case()))
    for selector in ("h1", ".counts", "header .facts", "header .command", "header nav"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None, selector
        assert box["y"] + box["height"] < DESK["height"], selector


def test_the_requirements_are_filtered_by_verdict_and_text(opened: Any) -> None:
    """What is filtered away is counted, and comes back."""
    page = opened(samples.results(samples.case()))
    rows = page.locator("[data-row]:visible")
    before = rows.count()
    page.locator("form[data-filter] input[value=v-conforms]").uncheck()
    assert page.locator("[data-row].v-conforms:visible").count() == 0
    assert "hidden" in page.locator("output").inner_text()
    page.locator("form[data-filter] input[value=v-conforms]").check()
    assert rows.count() == before
    page.get_by_label("Containing").fill("eviction")
    assert 0 < rows.count() < before
    page.get_by_label("Containing").fill("")
    assert (rows.count(), page.locator("output").inner_text()) == (before, "")


def test_a_link_to_a_case_opens_its_fold(opened: Any) -> None:
    """Also one that was sent to somebody: the address alone is enough."""
    page = opened(samples.many(12))
    last = page.locator("section.onecase").last
    assert not last.locator("> details").evaluate("fold => fold.open")
    page.goto(f"{page.url}#{last.get_attribute('id')}")
    page.reload()
    assert last.locator("> details").evaluate("fold => fold.open")
    assert last.evaluate("section => Math.abs(section.getBoundingClientRect().top) < window.innerHeight")


def test_a_command_is_copied_as_it_stands(opened: Any) -> None:
    """The button says that it did, and what is copied is what is shown."""
    results = samples.results(samples.case())
    page = opened(results, permissions=["clipboard-read", "clipboard-write"])
    button = page.get_by_role("button", name="Copy: Repeat this run")
    button.click()
    page.wait_for_function("button => button.textContent === 'Copied'", arg=button.element_handle())
    assert page.evaluate("navigator.clipboard.readText()") == f"{results.command} --hypothesis-seed={results.seed}"


def test_the_keyboard_reaches_everything(opened: Any) -> None:
    """The skip link first; then filters and folds, and Enter opens a fold."""
    page = opened(samples.results(samples.case()))
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    reached = {focused(page)}
    for _ in range(60):
        page.keyboard.press("Tab")
        reached.add(focused(page))
    assert {"A", "BUTTON", "INPUT checkbox", "INPUT search", "SUMMARY"} <= reached
    fold = page.locator("#run details").first
    fold.locator("summary").focus()
    page.keyboard.press("Enter")
    assert fold.evaluate("fold => fold.open")


def focused(page: Page) -> str:
    """What kind of thing has the keyboard's focus."""
    return page.evaluate("(e => e.tagName + (e.tagName === 'INPUT' ? ' ' + e.type : ''))(document.activeElement)")


@pytest.mark.parametrize("text", [HOSTILE, samples.HOSTILE])
def test_hostile_text_runs_nothing_and_is_shown_as_written(opened: Any, text: str) -> None:
    """In prompts, answers, names, logs and everywhere else: no dialog, no message, no request, no element."""
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
    """Nothing is shown by a script that is not in the page already, and no button is there that could do nothing."""
    results = samples.results(samples.case())
    page = opened(results, java_script_enabled=False)
    assert results.requirements[0].title in page.locator("main").inner_text()
    assert page.locator("section.onecase .sentence").is_visible()
    assert page.locator("button:visible, form:visible").count() == 0
    fold = page.locator("#run details").first
    fold.locator("summary").click()
    assert fold.locator("dl, table, p").first.is_visible()


def test_printing_opens_every_fold(opened: Any) -> None:
    """What is on paper cannot be clicked."""
    page = opened(samples.many(5))
    assert page.locator("details:not([open])").count() > 0
    assert page.pdf(format="A4").startswith(b"%PDF")
    assert page.locator("details:not([open])").count() == 0


@pytest.mark.parametrize("violations", [0, 1, 50])
def test_no_screen_scrolls_sideways(opened: Any, tmp_path: Path, violations: int) -> None:
    """On a desk and in a hand, with nothing to tell and with much; and the background is the theme's."""
    page = opened(samples.many(violations))
    for scheme, viewport in itertools.product(("light", "dark"), (DESK, PHONE)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(viewport)
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        back = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")
        assert (sum(map(int, back[:3])) > 3 * 128) is (scheme == "light")
        page.screenshot(path=tmp_path / "page.png")
        assert (tmp_path / "page.png").stat().st_size > 10_000


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_nothing_serious(opened: Any, scheme: str) -> None:
    """Contrast, names, order of headings, tables: by the rules of axe-core, with every fold open."""
    page = opened(samples.results(samples.case(), samples.case("b", known_issue="x")), color_scheme=scheme)
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    serious = [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in Axe().run(page).response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
    assert serious == []
