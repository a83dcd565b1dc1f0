"""A parsed HTML page, for the tests of everything that writes pages."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser

VOID = {"meta", "col", "input", "br", "link", "img"}


class Page(HTMLParser):
    """A page as a browser parses it: elements with attributes, and text. Fails if the nesting is wrong."""

    def __init__(self, source: str) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.texts: list[str] = []
        self.raw: dict[str, list[str]] = {"style": [], "script": []}
        self.open: list[str] = []
        self.feed(source)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, {name: value or "" for name, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        inside = self.open[-1] if self.open else ""
        self.raw[inside].append(data) if inside in self.raw else self.texts.append(data)

    @property
    def text(self) -> str:
        """Return the text that a reader sees, with white space flattened."""
        return re.sub(r"\s+", " ", "".join(self.texts))

    def attributes(self, name: str, *, tag: str = "") -> Iterator[str]:
        """Yield the values of one attribute, of one kind of element or of all."""
        for element, attributes in self.elements:
            if name in attributes and tag in ("", element):
                yield attributes[name]


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colours, #rrggbb, as WCAG defines it."""
    low, high = sorted((_luminance(one), _luminance(other)))
    return (high + 0.05) / (low + 0.05)


def _luminance(colour: str) -> float:
    channels = [int(colour[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
