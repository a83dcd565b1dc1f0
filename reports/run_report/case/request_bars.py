"""One request of the timeline as a bar: wait and prefill, the cached share, decode, preemptions and disconnect."""

from __future__ import annotations

from dataclasses import dataclass

from coldproof.harness.schema.case import RequestRow
from coldproof.reports.format.text import one_line
from coldproof.reports.run_report.case.cached_token_bounds import bound_violation
from coldproof.reports.run_report.case.geometry import Label, Scale, label_within, lane_label

BAR, NARROW_BAR = 14.0, 11.0
_MIN_WIDTH = 3.0  # so that a request of a few milliseconds is visible
_MAX_NOTE = 30  # letters of a note beside a bar


@dataclass(frozen=True, slots=True)
class Phase:
    """A part of a bar: prefill, cached, decode or preempted."""

    kind: str
    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Bar:
    """One request. `y` and `height` are the bar's, not the lane's; `written`: the x where its prefix was cached."""

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
    """Return the bar of a request. `lane`: the y position where its lane begins."""
    x = scale.x(row.sent)
    width = round(max(scale.x(row.finished) - x, _MIN_WIDTH), 1)
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
        kind={True: "right", False: "wrong", None: "unknown"}[row.correct],
        failing=failing,
        phases=_phases(row, x, width, scale),
        written=min(scale.x(row.first_token if row.first_token is not None else row.finished), x + width),
        cached=Label(x + (9 if row.written_by is not None else 2), y - 4, _cached(row)) if roomy else None,
        pin=_pin(row, y + BAR + 12, scale),
        aborted=bool(row.aborted),
        notes=_notes(row) if roomy else [_short(row)],
        title=one_line("; ".join([_cached(row), *_notes(row)]), 300),
    )


def _phases(row: RequestRow, x: float, width: float, scale: Scale) -> list[Phase]:
    """Return the phases in drawing order: later ones are on top."""
    first = x + width if row.first_token is None else min(max(scale.x(row.first_token), x), x + width)
    prefill = round(first - x, 1)
    share = (row.cached_tokens or 0) / row.prompt_tokens if row.prompt_tokens else 0.0
    phases = [
        Phase("prefill", x, prefill),
        Phase("cached", x, round(prefill * min(share, 1.0), 1)),
        Phase("decode", first, round(x + width - first, 1)),
    ]
    phases += [
        Phase("preempted", scale.x(at), round(max(scale.x(until) - scale.x(at), _MIN_WIDTH), 1))
        for at, until in zip(row.preempted_at, row.resumed_at, strict=False)
    ]
    return [phase for phase in phases if phase.width > 0]


def _pin(row: RequestRow, y: float, scale: Scale) -> Label | None:
    """Return the label at the first wrong token."""
    if row.wrong_token is None or row.wrong_token_at is None:
        return None
    placed = label_within(scale.x(row.wrong_token_at), y, f"wrong from token {row.wrong_token} on")
    return Label(scale.x(row.wrong_token_at), y, placed.words, placed.anchor)


def _cached(row: RequestRow) -> str:
    if row.cached_tokens is None:
        return f"cached tokens not reported (prompt of {row.prompt_tokens})"
    return f"{row.cached_tokens} of {row.prompt_tokens} cached"


def _notes(row: RequestRow) -> list[str]:
    """Return the notes of a lane: the correctness of the answer, then anything unusual."""
    answer = {True: "✓ correct", False: "✕ wrong answer", None: "– not compared"}[row.correct]
    notes = ["✕ error" if row.error else answer]
    notes += [f"✕ {bound_violation(row)}"] if bound_violation(row) else []
    notes += [f"disconnect ({row.aborted})"] if row.aborted else []
    times = len(row.preempted_at)
    notes += [f"preempted {times} {'time' if times == 1 else 'times'}"] if times else []
    return [one_line(note, _MAX_NOTE) for note in notes]


def _short(row: RequestRow) -> str:
    """Return the notes in one line: the sign of the answer, the cached tokens, then anything unusual."""
    sign = {True: "✓", False: "✕", None: "–"}[False if row.error else row.correct]
    count = "not reported" if row.cached_tokens is None else f"{row.cached_tokens} of {row.prompt_tokens}"
    broken = " ✕ out of range" if bound_violation(row) else ""
    unusual = ", disconnect" if row.aborted else ", preempted" if row.preempted_at else ""
    return one_line(f"{sign} {count}{broken}{unusual}", _MAX_NOTE)
