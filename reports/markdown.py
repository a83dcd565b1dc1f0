"""Text of an engine in Markdown: in prose it stays text, and inside code its fence is longer than any in it."""

from __future__ import annotations

import re
from collections.abc import Iterable

from reports.text import one_line

MOST = 50  # lines of a section, rows of a table: CI systems cut or refuse a long text, the page has everything
_ENTITIES = {"&": "&amp;", "<": "&lt;", ">": "&gt;"}
# "www." and "://" are escaped too: both would become links by themselves.
_MEANT = re.compile(r"[&<>\\`*_\[\](){}#|~!$@]|(?<=www)\.|:(?=//)", re.IGNORECASE)


def escaped(text: str, limit: int = 600) -> str:
    """One line of text that Markdown shows as it is, cut at so many characters."""
    return _MEANT.sub(lambda found: _ENTITIES.get(found[0], f"\\{found[0]}"), one_line(text, limit))


def code(text: str) -> str:
    """One line of text as a code span."""
    line = one_line(text, 2000)
    fence = "`" * (_longest(line) + 1)
    gap = " " if line[:1] == "`" or line[-1:] == "`" or not line else ""
    return f"{fence}{gap}{line}{gap}{fence}"


def fenced(text: str) -> str:
    """Lines of text as a code block."""
    fence = "`" * max(3, _longest(text) + 1)
    return f"{fence}\n{text}\n{fence}"


def section(title: str, items: Iterable[str], *, elsewhere: str = "") -> list[str]:
    """A heading and a list of items that are Markdown already, bounded. Nothing where there are none."""
    lines = list(items)
    if not lines:
        return []
    more = [f"- and {len(lines) - MOST} more{elsewhere}"] if len(lines) > MOST else []
    return [f"### {title}", "", *lines[:MOST], *more, ""]


def _longest(text: str) -> int:
    return max(map(len, re.findall("`+", text)), default=0)
