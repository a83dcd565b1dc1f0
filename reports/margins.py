"""How sure the oracle was of each token: its top-2 gap by position, beside what the rule lets pass as noise."""

from __future__ import annotations

from dataclasses import dataclass

from reports.drawing import LEFT, RIGHT, Label, label_within
from reports.schema import Case, TokenRow
from reports.text import number, token_text

TOP = 20.0
BOTTOM = 84.0
ROWS = 15.0  # between the lines of text below
_WIDEST, _LETTERS = 34.0, 16.0  # a position's share of the width: at most, and the least that holds a token's text
_MOST = 130  # positions; more are thinner than a stroke


@dataclass(frozen=True, slots=True)
class Column:
    """One position of the answer."""

    x: float
    top: float
    height: float
    kind: str  # same, differs, first
    position: str
    cold: str
    warm: str
    title: str


@dataclass(frozen=True, slots=True)
class Margins:
    """Everything the drawing needs."""

    columns: list[Column]
    step: float
    right: float
    most: str
    floor: float | None
    floor_words: Label | None
    first: Label | None
    texts: bool
    height: float


def margins(case: Case) -> Margins | None:
    """The picture, or None where the oracle told no gap."""
    rows = _rows(case)
    most = max((row.expected_gap for row in rows if row.expected_gap is not None), default=0.0)
    if most <= 0:
        return None
    step = round(min((RIGHT - LEFT) / len(rows), _WIDEST), 2)
    texts = step >= _LETTERS
    top = max(most, case.noise_nats or 0.0)
    columns = [_column(row, LEFT + step * i, top, case.first_difference, texts=texts) for i, row in enumerate(rows)]
    floor = None if case.noise_nats is None else round(_y(case.noise_nats, top), 1)
    right = round(LEFT + step * len(rows), 1)
    return Margins(
        columns=columns,
        step=step,
        right=right,
        most=number(top),
        floor=floor,
        floor_words=None if floor is None else Label(right + 6, floor + 4, f"noise: {number(case.noise_nats)} nats"),
        first=next((label_within(c.x, 12.0, "▼ first difference") for c in columns if c.kind == "first"), None),
        texts=texts,
        height=BOTTOM + ROWS * (3 if texts else 1) + 8,
    )


def _rows(case: Case) -> list[TokenRow]:
    """All that are recorded, or those around the first difference."""
    if len(case.tokens) <= _MOST:
        return case.tokens
    middle = case.first_difference or 0
    near = [row for row in case.tokens if abs(row.position - middle) <= _MOST // 2]
    return near[:_MOST]


def _y(gap: float, top: float) -> float:
    return BOTTOM - min(max(gap / top, 0.0), 1.0) * (BOTTOM - TOP)


def _column(row: TokenRow, x: float, top: float, first: int | None, *, texts: bool) -> Column:
    y = round(_y(row.expected_gap or 0.0, top), 1)
    differs = row.expected != row.observed
    gap = "gap not told" if row.expected_gap is None else f"gap {number(row.expected_gap)} nats"
    return Column(
        x=round(x, 1),
        top=y,
        height=round(BOTTOM - y, 1),
        kind="first" if row.position == first else "differs" if differs else "same",
        position=str(row.position) if texts or row.position % 10 == 0 else "",
        cold=_short(row.expected, row.expected_text) if texts else "",
        warm=_short(row.observed, row.observed_text) if texts else "",
        title=f"position {row.position}: cold {row.expected}, warm {row.observed}, {gap}",
    )


def _short(token: int | None, text: str) -> str:
    """A token in three letters: its text, else its id, else a mark that it is longer."""
    shown = token_text(text) or ("" if token is None else str(token))
    return shown if len(shown) <= 3 else "…"
