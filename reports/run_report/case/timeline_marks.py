"""The vertical marks of a timeline. Their labels are in rows above the plot, so that they do not overlap."""

from __future__ import annotations

from dataclasses import dataclass

from coldproof.harness.schema.case import Case
from coldproof.reports.format.text import one_line
from coldproof.reports.run_report.case.adapter_spans import change_texts
from coldproof.reports.run_report.case.geometry import WIDTH, Label, Scale, text_width

TOP = 6.0
ROW_HEIGHT = 15.0  # of one row of labels
_MAX_ROWS = 5  # a mark that does not fit has no label; the tables have its text
_MAX_LABEL = 64  # letters
_MARGIN = 4.0  # between a mark and its label


@dataclass(frozen=True, slots=True)
class Mark:
    """A step that sends no request, or a change during a burst. `top`: where its line begins."""

    step: int
    kind: str  # change, reset, pause
    x: float
    width: float
    top: float
    words: str
    label: Label | None


@dataclass(frozen=True, slots=True)
class _Event:
    step: int
    kind: str
    began: float
    ended: float
    words: str


def marks(case: Case, scale: Scale) -> list[Mark]:
    """Return the marks in the order of their start times."""
    drawn: list[Mark] = []
    row_ends = [0.0] * _MAX_ROWS  # the x up to which each row is occupied
    for event in sorted(_events(case), key=lambda one: (one.began, one.step)):
        x, end = scale.x(event.began), scale.x(event.ended)
        row, label = _placed(x, end, one_line(event.words, _MAX_LABEL), row_ends)
        if label is not None:
            row_ends[row] = 2 * _MARGIN + label.x + (text_width(label.words) if label.anchor == "start" else 0)
        width = round(max(end - x, 1.5), 1)
        top = TOP + ROW_HEIGHT * (row if label is not None else 0)
        drawn.append(Mark(event.step, event.kind, x, width, top, one_line(event.words, 200), label))
    return drawn


def labels_bottom(drawn: list[Mark]) -> float:
    """Return the y position where the rows of labels end."""
    return max((mark.top + ROW_HEIGHT for mark in drawn if mark.label is not None), default=TOP)


def _events(case: Case) -> list[_Event]:
    """Return changes, resets and every other step that sends no request."""
    sending = {row.step for row in case.requests} | {change.step for change in case.changes}
    kind = "pause" if case.changes else "change"  # a step has no kind: beside other changes, most of these are pauses
    others = [_Event(s.step, kind, s.started, s.finished, s.words) for s in case.steps if s.step not in sending]
    return others + [
        _Event(change.step, "reset" if change.kind == "reset" else "change", change.began, change.ended, words)
        for change, words in change_texts(case)
    ]


def _placed(x: float, end: float, words: str, row_ends: list[float]) -> tuple[int, Label | None]:
    """Return the first row with room for a label, right of the mark or else left of it, and the label."""
    width, start = text_width(words), end + _MARGIN
    for row, taken in enumerate(row_ends):
        y = TOP + ROW_HEIGHT * row + 10
        if start >= taken and start + width <= WIDTH:
            return row, Label(start, y, words)
        if start + width > WIDTH and x - _MARGIN - width >= taken:
            return row, Label(x - _MARGIN, y, words, "end")
    return 0, None
