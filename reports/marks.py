"""The upright marks of a timeline, with their words in rows above the plot that keep them apart."""

from __future__ import annotations

from dataclasses import dataclass

from reports.drawing import WIDTH, Label, Scale, text_width
from reports.names import changes_in_words
from reports.schema import Case
from reports.text import one_line

TOP = 6.0
LEVEL = 15.0  # one row of words
_MOST_LEVELS = 5  # what finds no room in them has its words in the tables only
_LONGEST = 64  # letters
_BESIDE = 4.0  # between a mark and its words


@dataclass(frozen=True, slots=True)
class Mark:
    """One step that sends no request, or a change in the midst of a burst. `top`: where its line begins."""

    step: int
    kind: str  # change, reset, pause
    x: float
    width: float
    top: float
    words: str
    label: Label | None


@dataclass(frozen=True, slots=True)
class _Moment:
    step: int
    kind: str
    began: float
    ended: float
    words: str


def marks(case: Case, scale: Scale) -> list[Mark]:
    """In the order of their beginning."""
    drawn: list[Mark] = []
    full = [0.0] * _MOST_LEVELS  # up to where each row is taken
    for moment in sorted(_moments(case), key=lambda one: (one.began, one.step)):
        x, end = scale.x(moment.began), scale.x(moment.ended)
        level, label = _placed(x, end, one_line(moment.words, _LONGEST), full)
        if label is not None:
            full[level] = 2 * _BESIDE + label.x + (text_width(label.words) if label.anchor == "start" else 0)
        width = round(max(end - x, 1.5), 1)
        top = TOP + LEVEL * (level if label is not None else 0)
        drawn.append(Mark(moment.step, moment.kind, x, width, top, one_line(moment.words, 200), label))
    return drawn


def below(drawn: list[Mark]) -> float:
    """Where the rows of words end."""
    return max((mark.top + LEVEL for mark in drawn if mark.label is not None), default=TOP)


def _moments(case: Case) -> list[_Moment]:
    """Changes and resets, and every other step that sends nothing."""
    sending = {row.step for row in case.requests} | {change.step for change in case.changes}
    kind = "pause" if case.changes else "change"  # an older file does not say what its steps were
    others = [_Moment(s.step, kind, s.started, s.finished, s.words) for s in case.steps if s.step not in sending]
    return others + [
        _Moment(change.step, "reset" if change.kind == "reset" else "change", change.began, change.ended, words)
        for change, words in zip(case.changes, changes_in_words(case), strict=True)
    ]


def _placed(x: float, end: float, words: str, full: list[float]) -> tuple[int, Label | None]:
    """The first row in which words fit: behind the mark, or before it where the picture ends."""
    width, start = text_width(words), end + _BESIDE
    for level, taken in enumerate(full):
        y = TOP + LEVEL * level + 10
        if start >= taken and start + width <= WIDTH:
            return level, Label(start, y, words)
        if start + width > WIDTH and x - _BESIDE - width >= taken:
            return level, Label(x - _BESIDE, y, words, "end")
    return 0, None
