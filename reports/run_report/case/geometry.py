"""Geometry that the charts of a case share: widths, scales, axis ticks and the tone of each name.

The templates draw the charts, so every label is escaped like all other text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from coldproof.harness.schema.case import Case, RequestRow
from coldproof.reports.format.text import one_line, visible

WIDTH = 1000.0
LEFT = 150.0  # the lane labels are left of it
RIGHT = 800.0  # the notes of a lane are right of it, from 812
MAX_LANES = 48  # more are not readable; the tables have all requests
ROOMY = 14  # up to this many lanes, there is room for text at the bars
TONES = 6  # in the style sheet; further names reuse the tones and are distinguished by their labels
_LETTER = 6.4  # the width of an 11 px letter: the average, rounded up


@dataclass(frozen=True, slots=True)
class Label:
    """A text at a position. `anchor` is SVG's text-anchor: start, middle or end."""

    x: float
    y: float
    words: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Scale:
    """Maps the values from zero to `end` to the plot's width."""

    end: float

    def x(self, value: float) -> float:
        """Return the x position of a value. Values out of range are at the edge."""
        share = min(max(value / self.end, 0.0), 1.0)
        return round(LEFT + share * (RIGHT - LEFT), 1)


def text_width(words: str) -> float:
    """Return the approximate width of a label."""
    return _LETTER * len(visible(words))


def label_within(x: float, y: float, words: str, *, right: float = RIGHT) -> Label:
    """Return a label that begins at x, or that ends at the right edge if it would cross it."""
    fits = x + text_width(words) <= right
    return Label(x if fits else right, y, words, "start" if fits else "end")


def shown_requests(case: Case) -> list[RequestRow]:
    """Return all requests, or the last MAX_LANES of them up to the failing one, because those matter most."""
    if len(case.requests) <= MAX_LANES:
        return case.requests
    failing = next((i for i, row in enumerate(case.requests) if row.request == case.failing_request), MAX_LANES - 1)
    start = max(0, failing - MAX_LANES + 1)
    return case.requests[start : start + MAX_LANES]


def lane_label(row: RequestRow) -> str:
    """Return the number of a lane's request and its adapter or model."""
    return one_line(f"r{row.request} {row.adapter or row.model}", 21)


def name_indices(names: Iterable[str]) -> dict[str, int]:
    """Return the index of each name in the order of first appearance."""
    return {name: index for index, name in enumerate(dict.fromkeys(names))}


def axis_ticks(end: float, most: int = 6) -> list[float]:
    """Return at most `most` + 1 round values from zero to the end."""
    for power in range(-4, 7):
        for base in (1, 2, 5):
            stride = float(f"{base}e{power}")
            if end / stride <= most:
                return [round(i * stride, 6) for i in range(int(end / stride) + 1)]
    return [0.0]
