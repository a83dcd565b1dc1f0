"""The picture of one case: its requests as bars, its other steps as upright marks, on a linear time axis.

Only geometry is computed here; the template draws it, so every label passes through the same escaping as all text.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.schema import Case, RequestRow, StepRow
from reports.text import one_line

WIDTH = 1000.0
LEFT = 190.0  # room for the labels
RIGHT = 20.0
TOP = 34.0
LANE = 22.0
MAX_LANES = 48  # more is not readable; the table below holds them all
_LEAST_BAR = 3.0  # a request of a few milliseconds must still be seen


@dataclass(frozen=True, slots=True)
class Bar:
    """One request."""

    request: int
    y: float
    x: float
    width: float
    label: str
    note: str
    kind: str  # right, wrong, unknown
    failing: bool


@dataclass(frozen=True, slots=True)
class Mark:
    """One step that sends no request: a load, a reload, a reset, a pause."""

    step: int
    x: float
    width: float
    words: str


@dataclass(frozen=True, slots=True)
class Tick:
    """One place on the axis."""

    x: float
    label: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything the drawing needs."""

    height: float
    bars: list[Bar]
    marks: list[Mark]
    ticks: list[Tick]
    requests: int  # how many there are; `bars` may hold fewer


def timeline(case: Case) -> Timeline | None:
    """The picture, or None where nothing has a duration to draw."""
    end = max([row.finished for row in case.requests] + [row.finished for row in case.steps], default=0.0)
    if end <= 0 or not case.requests:
        return None
    shown = _shown_requests(case)
    bursts = {row.step for row in case.requests}
    return Timeline(
        height=TOP + LANE * len(shown) + 30,
        bars=[_bar(row, lane, end, failing=row.request == case.failing_request) for lane, row in enumerate(shown)],
        marks=[_mark(row, end) for row in case.steps if row.step not in bursts],
        ticks=[Tick(_x(at, end), f"{at:g} s") for at in _ticks(end)],
        requests=len(case.requests),
    )


def _shown_requests(case: Case) -> list[RequestRow]:
    """All, or those that end with the failing one: what came just before it matters most."""
    if len(case.requests) <= MAX_LANES:
        return case.requests
    failing = next((i for i, row in enumerate(case.requests) if row.request == case.failing_request), MAX_LANES - 1)
    start = max(0, failing - MAX_LANES + 1)
    return case.requests[start : start + MAX_LANES]


def _x(at: float, end: float) -> float:
    share = min(max(at / end, 0.0), 1.0)
    return round(LEFT + share * (WIDTH - LEFT - RIGHT), 1)


def _bar(row: RequestRow, lane: int, end: float, *, failing: bool) -> Bar:
    start = _x(row.sent, end)
    return Bar(
        request=row.request,
        y=TOP + LANE * lane,
        x=start,
        width=round(max(_x(row.finished, end) - start, _LEAST_BAR), 1),
        label=one_line(f"r{row.request} {row.model}", 26),
        note=_note(row),
        kind={True: "right", False: "wrong", None: "unknown"}[row.correct],
        failing=failing,
    )


def _note(row: RequestRow) -> str:
    cached = "cached tokens not reported" if row.cached_tokens is None else f"{row.cached_tokens} cached"
    return f"{cached} of {row.prompt_tokens}"


def _mark(row: StepRow, end: float) -> Mark:
    start = _x(row.started, end)
    return Mark(row.step, start, round(max(_x(row.finished, end) - start, 1.5), 1), one_line(row.words, 200))


def _ticks(end: float) -> list[float]:
    """Some five round places from zero on."""
    for power in range(-4, 7):
        for base in (1, 2, 5):
            stride = float(f"{base}e{power}")
            if end / stride <= 6:
                return [round(i * stride, 6) for i in range(int(end / stride) + 1)]
    return [0.0]
