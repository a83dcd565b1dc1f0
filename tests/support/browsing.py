"""Pages in a real browser, for the tests of what readers see: one Chromium that may not load or send anything."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Playwright, sync_playwright

from coldproof.harness.schema.results import Results
from coldproof.reports.exports.write import write_all

LONGEST = 300_000  # milliseconds: a busy machine takes longer than Playwright's half a minute
PHONE, DESK = {"width": 390, "height": 844}, {"width": 1300, "height": 900}


@contextlib.contextmanager
def a_browser() -> Iterator[Browser]:
    """Yield Debian's Chromium, Google's Chrome or Playwright's own browser. Skip the test if none is installed."""
    with sync_playwright() as playwright:
        path = chromium(playwright)
        if path is None:
            pytest.skip("no Chromium is installed: apt-get install chromium, or playwright install chromium")
        opened = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-gpu"], timeout=LONGEST
        )
        yield opened
        opened.close()


def chromium(playwright: Playwright) -> str | None:
    """Return the path of a browser that Playwright can drive, or None."""
    own = playwright.chromium.executable_path
    return shutil.which("chromium") or shutil.which("google-chrome") or (own if Path(own).exists() else None)


class MonitoredPage:
    """An open page, with everything that it must never do: dialogs, console messages and requests."""

    def __init__(self, browser: Browser, page: Path, **context: Any) -> None:
        self.address = page.as_uri()
        self.context = browser.new_context(**{"viewport": DESK, "color_scheme": "light", **context})
        self.context.set_default_timeout(LONGEST)
        self.requests: list[str] = []
        self.context.route("**/*", self.pass_or_count)
        self.page = self.context.new_page()
        self.trouble: list[str] = []
        self.page.on("dialog", lambda dialog: (self.trouble.append(dialog.message), dialog.dismiss()))
        self.page.on("console", lambda message: self.trouble.append(message.text))
        self.page.on("pageerror", lambda error: self.trouble.append(str(error)))
        self.page.goto(self.address)

    def pass_or_count(self, route: Any) -> None:
        """Let the page itself through; count and abort every other request."""
        if route.request.url.partition("#")[0] == self.address:
            route.continue_()
        else:
            self.requests.append(route.request.url)
            route.abort()


@contextlib.contextmanager
def pages_of(browser: Browser, folder: Path) -> Iterator[Callable[..., Page]]:
    """Yield a function that opens a run's page, or a page given as HTML. Fail at the end if a page logged or
    requested anything.
    """
    pages: list[MonitoredPage] = []

    def open_page(shown: Results | str, **context: Any) -> Page:
        here = folder / str(len(pages))
        if isinstance(shown, Results):
            write_all(shown, here)
        else:
            here.mkdir()
            (here / "index.html").write_text(shown, encoding="utf-8")
        pages.append(MonitoredPage(browser, here / "index.html", **context))
        return pages[-1].page

    yield open_page
    for one in pages:
        one.context.close()
        assert one.trouble == []
        assert one.requests == []


def focused(page: Page) -> str:
    """Return the kind of element that has the keyboard focus."""
    return page.evaluate("(e => e.tagName + (e.tagName === 'INPUT' ? ' ' + e.type : ''))(document.activeElement)")


def focus_stops(page: Page, steps: int) -> set[str]:
    """Return the kinds of elements that the Tab key reaches from the top. Fail if the skip link is not the first."""
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    assert page.locator(".skip").bounding_box()["x"] >= 0
    found = {focused(page)}
    for _ in range(steps):
        page.keyboard.press("Tab")
        found.add(focused(page))
    return found


def assert_it_fits_every_screen(page: Page, picture: Path) -> None:
    """Check desktop and phone sizes in both themes: no horizontal scrolling, and the background of the theme."""
    for scheme, viewport in itertools.product(("light", "dark"), (DESK, PHONE)):
        page.emulate_media(color_scheme=scheme)
        page.set_viewport_size(viewport)
        assert page.evaluate("document.documentElement.scrollWidth") == viewport["width"]
        back = page.evaluate("getComputedStyle(document.body).backgroundColor.match(/\\d+/g)")
        assert (sum(map(int, back[:3])) > 3 * 128) is (scheme == "light")
        page.screenshot(path=picture)
        assert picture.stat().st_size > 10_000


def serious_violations(page: Page) -> list[tuple[str, str, str]]:
    """Return the violations that axe-core rates serious or critical, with every fold open."""
    page.evaluate("document.querySelectorAll('details').forEach(fold => { fold.open = true; })")
    return [
        (rule["id"], node["html"][:200], node["failureSummary"])
        for rule in Axe().run(page).response["violations"]
        if rule["impact"] in ("serious", "critical")
        for node in rule["nodes"]
    ]
