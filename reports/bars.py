"""One request as a bar: its wait and prefill with the part that the cache gave, its decoding, and what cut into it."""

from __future__ import annotations

from dataclasses import dataclass

from reports.bounds import bound_broken
from reports.drawing import Label, Scale, label_within, lane_label
from reports.schema import RequestRow
from reports.text import one_line

BAR, NARROW_BAR = 14.0, 11.0
_LEAST = 3.0  # a request of a few milliseconds must still be seen
_BESIDE = 30  # letters beside a bar


@dataclass(frozen=True, slots=True)
class Phase:
    """A stretch of a bar: whole (not told apart), prefill, cached, decode or preempted."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One request. `y` and `height` are the bar's, not the lane's; `written`: where its prefix was in the cache."""

    request: int
    x: float
    y: float
    width: float
    height: float
    roomy: bool
    label: str
    identity: str
    kind: str  # right, wrong, unknown
    failing: bool
    phases: list[Phase]
    written: float
    cached: Label | None
    pin: Label | None
    aborted: bool
    notes: list[str]
    title: str


def bar(row: RequestRow, lane: float, scale: Scale, *, failing: bool, roomy: bool) -> Bar:
    """The bar of a request in the lane that begins at this height."""
    x = scale.x(row.sent)
    width = round(max(scale.x(row.finished) - x, _LEAST), 1)
    y = lane + (17 if roomy else 4)
    return Bar(
        request=row.request,
        x=x,
        y=y,
        width=width,
        height=BAR if roomy else NARROW_BAR,
        roomy=roomy,
        label=lane_label(row),
        identity=one_line(row.identity, 22),
        kind=kind_of(row),
        failing=failing,
        phases=_phases(row, x, width, scale),
        written=min(scale.x(row.first_token if row.first_token is not None else row.finished), x + width),
        cached=Label(x + (9 if row.written_by is not None else 2), y - 4, _cached(row)) if roomy else None,
        pin=_pin(row, y + BAR + 12, scale),
        aborted=bool(row.aborted),
        notes=_notes(row) if roomy else [_short(row)],
        title=one_line("; ".join([_cached(row), *_notes(row)]), 300),
    )


def kind_of(row: RequestRow) -> str:
    """Whether the answer was right, as a class of the style sheet."""
    return {True: "right", False: "wrong", None: "unknown"}[row.correct]


def _phases(row: RequestRow, x: float, width: float, scale: Scale) -> list[Phase]:
    """In the order of drawing: what comes later lies on top."""
    if row.first_token is None and row.output_tokens:
        return [Phase("whole", x, width)]  # an older file does not say when the first token came
    first = x + width if row.first_token is None else min(max(scale.x(row.first_token), x), x + width)
    prefill = round(first - x, 1)
    share = (row.cached_tokens or 0) / row.prompt_tokens if row.prompt_tokens else 0.0
    phases = [
        Phase("prefill", x, prefill),
        Phase("cached", x, round(prefill * min(share, 1.0), 1)),
        Phase("decode", first, round(x + width - first, 1)),
    ]
    phases += [
        Phase("preempted", scale.x(at), round(max(scale.x(until) - scale.x(at), _LEAST), 1))
        for at, until in zip(row.preempted_at, row.resumed_at, strict=False)
    ]
    return [phase for phase in phases if phase.width > 0]


def _pin(row: RequestRow, y: float, scale: Scale) -> Label | None:
    """Where the first wrong token came."""
    if row.wrong_token is None or row.wrong_token_at is None:
        return None
    placed = label_within(scale.x(row.wrong_token_at), y, f"wrong from token {row.wrong_token} on")
    return Label(scale.x(row.wrong_token_at), y, placed.words, placed.anchor)


def _cached(row: RequestRow) -> str:
    if row.cached_tokens is None:
        return f"cached of {row.prompt_tokens} not told"
    return f"{row.cached_tokens} of {row.prompt_tokens} cached"


def _notes(row: RequestRow) -> list[str]:
    """What is said of a lane: the answer first, then what is odd about it."""
    answer = {True: "✓ as cold", False: "✕ wrong answer", None: "– not compared"}[row.correct]
    notes = ["✕ error" if row.error else answer]
    notes += [f"✕ {bound_broken(row)}"] if bound_broken(row) else []
    notes += [f"aborted {row.aborted}"] if row.aborted else []
    times = len(row.preempted_at)
    notes += [f"preempted {times} {'time' if times == 1 else 'times'}"] if times else []
    return [one_line(note, _BESIDE) for note in notes]


def _short(row: RequestRow) -> str:
    """The same where a lane has one line: the sign of the answer and the count, then what is odd."""
    sign = {True: "✓", False: "✕", None: "–"}[False if row.error else row.correct]
    count = "not told" if row.cached_tokens is None else f"{row.cached_tokens} of {row.prompt_tokens}"
    broken = " ✕ bound" if bound_broken(row) else ""
    odd = ", aborted" if row.aborted else ", preempted" if row.preempted_at else ""
    return one_line(f"{sign} {count}{broken}{odd}", _BESIDE)
