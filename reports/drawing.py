"""What the pictures of a case share: widths, scales, round places on an axis, and which tone stands for which name.

Only geometry; the templates draw it, so every label passes through the same escaping as all other text.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from reports.schema import Case, RequestRow
from reports.text import one_line, visible

WIDTH = 1000.0
LEFT = 150.0  # room for whose lane it is
RIGHT = 800.0  # behind it stands what is said of the lane
NOTES = 812.0
MAX_LANES = 48  # more is not readable; the tables hold them all
ROOMY = 14  # up to so many lanes there is room for words at the bars
TONES = 6  # in the style sheet; further names begin again, and their labels tell them apart
_LETTER = 6.4  # of 11 px, on average and rather too wide


@dataclass(frozen=True, slots=True)
class Tick:
    """One place on the axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Label:
    """Words at a place. `anchor` is SVG's: start, middle or end."""

    x: float
    y: float
    words: str
    anchor: str = "start"


@dataclass(frozen=True, slots=True)
class Scale:
    """Zero to `end` over the plot's width."""

    end: float

    def x(self, value: float) -> float:
        """Where a value lies; what is outside lies at the edge."""
        share = min(max(value / self.end, 0.0), 1.0)
        return round(LEFT + share * (RIGHT - LEFT), 1)


def text_width(words: str) -> float:
    """About how wide a label is."""
    return _LETTER * len(visible(words))


def label_within(x: float, y: float, words: str, *, right: float = RIGHT) -> Label:
    """A label that begins at x, or ends at the right edge if it would run over it."""
    fits = x + text_width(words) <= right
    return Label(x if fits else right, y, words, "start" if fits else "end")


def shown_requests(case: Case) -> list[RequestRow]:
    """All, or those that end with the failing one: what came just before it matters most."""
    if len(case.requests) <= MAX_LANES:
        return case.requests
    failing = next((i for i, row in enumerate(case.requests) if row.request == case.failing_request), MAX_LANES - 1)
    start = max(0, failing - MAX_LANES + 1)
    return case.requests[start : start + MAX_LANES]


def lane_label(row: RequestRow) -> str:
    """Which request a lane is, and to whom."""
    return one_line(f"r{row.request} {row.adapter or row.model}", 21)


def tones(names: Iterable[str]) -> dict[str, int]:
    """A tone for each name, in the order of their first appearance."""
    return {name: place % TONES for name, place in places(names).items()}


def places(names: Iterable[str]) -> dict[str, int]:
    """The place of each name in the order of their first appearance."""
    return {name: place for place, name in enumerate(dict.fromkeys(names))}


def round_places(end: float, most: int = 6) -> list[float]:
    """Some round places from zero to the end."""
    for power in range(-4, 7):
        for base in (1, 2, 5):
            stride = float(f"{base}e{power}")
            if end / stride <= most:
                return [round(i * stride, 6) for i in range(int(end / stride) + 1)]
    return [0.0]
