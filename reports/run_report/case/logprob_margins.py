"""The chart of logprob margins: the cold answer's margin at each position, and the noise that the rule tolerates."""

from __future__ import annotations

from dataclasses import dataclass

from coldproof.harness.schema.case import Case, TokenRow
from coldproof.reports.format.text import number, token_text
from coldproof.reports.run_report.case.geometry import LEFT, RIGHT, Label, label_within

TOP = 20.0
BOTTOM = 84.0
ROWS = 15.0  # between the lines of text below the bars
_WIDEST, _MIN_TEXT = 34.0, 16.0  # the width of a position: the maximum, and the minimum that has room for a token
_MAX_POSITIONS = 130  # more would be thinner than a stroke


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
class MarginChart:
    """All data that the template draws."""

    columns: list[Column]
    step: float
    right: float
    most: str
    floor: float | None
    floor_words: Label | None
    first: Label | None
    texts: bool
    height: float


def margin_chart(case: Case) -> MarginChart | None:
    """Return the chart, or None if the oracle reported no margins."""
    rows = _rows(case)
    most = max((row.expected_gap for row in rows if row.expected_gap is not None), default=0.0)
    if most <= 0:
        return None
    step = round(min((RIGHT - LEFT) / len(rows), _WIDEST), 2)
    texts = step >= _MIN_TEXT
    top = max(most, case.noise_nats or 0.0)
    columns = [_column(row, LEFT + step * i, top, case.first_difference, texts=texts) for i, row in enumerate(rows)]
    floor = None if case.noise_nats is None else round(_y(case.noise_nats, top), 1)
    right = round(LEFT + step * len(rows), 1)
    return MarginChart(
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
    """Return all recorded tokens, or those around the first difference if there are too many."""
    if len(case.tokens) <= _MAX_POSITIONS:
        return case.tokens
    middle = case.first_difference or 0
    near = [row for row in case.tokens if abs(row.position - middle) <= _MAX_POSITIONS // 2]
    return near[:_MAX_POSITIONS]


def _y(gap: float, top: float) -> float:
    return BOTTOM - min(max(gap / top, 0.0), 1.0) * (BOTTOM - TOP)


def _column(row: TokenRow, x: float, top: float, first: int | None, *, texts: bool) -> Column:
    y = round(_y(row.expected_gap or 0.0, top), 1)
    differs = row.expected != row.observed
    margin = "margin not reported" if row.expected_gap is None else f"margin {number(row.expected_gap)} nats"
    return Column(
        x=round(x, 1),
        top=y,
        height=round(BOTTOM - y, 1),
        kind="first" if row.position == first else "differs" if differs else "same",
        position=str(row.position) if texts or row.position % 10 == 0 else "",
        cold=_short(row.expected, row.expected_text) if texts else "",
        warm=_short(row.observed, row.observed_text) if texts else "",
        title=f"position {row.position}: cold {row.expected}, warm {row.observed}, {margin}",
    )


def _short(token: int | None, text: str) -> str:
    """Return a token in at most three letters: its text, else its id, else an ellipsis."""
    shown = token_text(text) or ("" if token is None else str(token))
    return shown if len(shown) <= 3 else "…"
