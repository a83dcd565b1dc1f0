"""Escapes engine output for Markdown: in text, in code spans and in code blocks."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from coldproof.reports.format.text import one_line, visible

MAX_ITEMS = 50  # lines of a section, rows of a table: CI systems cut or refuse a long text, the page has everything
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# "www." and "://" are escaped too: both would become links by themselves.
_BAR = re.compile(r"(\\*)\|")
_MEANT = re.compile(r"[&<>\\`*_\[\](){}#|~!$@]|(?<=www)\.|:(?=//)", re.IGNORECASE)


def escaped(text: str, limit: int = 600) -> str:
    """Return the text on one escaped line, cut at `limit` characters."""
    return _MEANT.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), one_line(text, limit))


def code(text: str) -> str:
    """Return the text as a code span on one line."""
    line = one_line(text, 2000)
    fence = "`" * (_longest(line) + 1)
    gap = " " if line[:1] == "`" or line[-1:] == "`" or not line else ""
    return f"{fence}{gap}{line}{gap}{fence}"


def fenced(text: str, language: str = "") -> str:
    """Return the text as a code block. `language`: of which it is highlighted."""
    shown = visible(text)
    fence = "`" * max(3, _longest(shown) + 1)
    return f"{fence}{language}\n{shown}\n{fence}"


def section(title: str, items: Iterable[str], *, elsewhere: str = "") -> list[str]:
    """Return a heading and at most MAX_ITEMS items, which must be Markdown already. Nothing without items."""
    lines = list(items)
    if not lines:
        return []
    more = [f"- and {len(lines) - MAX_ITEMS} more{elsewhere}"] if len(lines) > MAX_ITEMS else []
    return [f"### {title}", "", *lines[:MAX_ITEMS], *more, ""]


def table(heads: Sequence[str], rows: Iterable[Iterable[str]], *, numbers: Sequence[str] = ()) -> list[str]:
    """Return a table of cells that are Markdown already. Columns of numbers are aligned right."""
    ruler = "|".join("--:" if head in numbers else "---" for head in heads)
    lines = [f"| {' | '.join(map(cell, cells))} |" for cells in (heads, *rows)]
    return [lines[0], f"|{ruler}|", *lines[1:], ""]


def cell(markdown: str) -> str:
    """Return Markdown as a cell: a vertical bar ends a cell inside a code span too."""
    return _BAR.sub(lambda found: f"{found[1]}\\|" if len(found[1]) % 2 == 0 else found[0], markdown)


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
