"""Renders the pages of the register: the index, and one page for each engine version and target."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from coldproof.reports.page.environment import PageTemplates
from coldproof.reports.register.entries import RegisterEntry, by_page

TEMPLATES = PageTemplates(folders=(Path(__file__).parent / "templates",))
STYLES = ("style.css", "register.css")


def render_index(entries: Sequence[RegisterEntry], *, version: str) -> str:
    """Return the index: the newest bundle of each engine version and target. `version`: of Coldproof."""
    return TEMPLATES.page("index.html.j2", styles=STYLES, pages=by_page(entries), version=version)


def render_entries(entries: Sequence[RegisterEntry], *, version: str) -> str:
    """Return the page of one engine version and target, the newest bundle first."""
    return TEMPLATES.page("entry.html.j2", styles=STYLES, entries=entries, newest=entries[0], version=version)
