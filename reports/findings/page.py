"""Renders the findings as one self-contained page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from markupsafe import Markup, escape

from coldproof.harness.schema.findings import FindingRecord
from coldproof.reports.findings.tables import by_engine, count_table, counts_in_words, found_in_words, headline, ranked
from coldproof.reports.format.text import visible
from coldproof.reports.page.environment import PageTemplates


def prose(text: str) -> Markup:
    """Return escaped text, with what is between backticks as code."""
    parts = [escape(visible(part)) for part in text.split("`")]
    return Markup("").join(
        Markup("<code>{}</code>").format(part) if number % 2 else part for number, part in enumerate(parts)
    )


TEMPLATES = PageTemplates(folders=(Path(__file__).parent / "templates",), filters={"prose": prose})


def render_findings(records: Sequence[FindingRecord], titles: Mapping[str, str], *, version: str) -> str:
    """Return the page as one HTML document. `titles`: of the engines, by their folders. `version`: of Coldproof."""
    heads, counts = count_table(records)
    return TEMPLATES.page(
        "findings.html.j2",
        styles=("style.css", "findings.css"),
        headline=headline(records),
        sums=counts_in_words(records),
        heads=heads,
        counts=counts,
        ranked=ranked(records),
        groups=by_engine(records),
        title_of=lambda engine: titles.get(engine, engine),
        found_in_words=found_in_words,
        version=version,
    )
