"""The picture of one case: a lane for each request, what lay behind the adapters' names, and the pool, on one linear
time axis.

A lane's ground is the content behind the request's own name at each moment, so that a bar which begins on another
ground than the one whose KV it read shows the fault before a word is read.
"""

from __future__ import annotations

from dataclasses import dataclass

from reports.bars import Bar, bar
from reports.drawing import (
    LEFT,
    RIGHT,
    ROOMY,
    Label,
    Scale,
    Tick,
    round_places,
    shown_requests,
    text_width,
    tones,
)
from reports.marks import Mark, below, marks
from reports.names import NameSpan, name_spans
from reports.schema import Case, QueueRow, RequestRow
from reports.text import one_line

STRIP = 18.0  # one adapter's name
LANE, NARROW_LANE = 48.0, 20.0
POOL = 34.0
_MOST_NAMES = 6


@dataclass(frozen=True, slots=True)
class Band:
    """A content behind a name for a while."""

    x: float
    y: float
    width: float
    height: float
    tone: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class Strip:
    """All that lay behind one name."""

    name: str
    y: float
    bands: list[Band]


@dataclass(frozen=True, slots=True)
class Arrow:
    """From who wrote a prefix to who wrongly read it."""

    path: str
    head: str
    words: str
    label: Label | None


@dataclass(frozen=True, slots=True)
class Pool:
    """How much of the pool was in use, look by look."""

    path: str
    top: float
    bottom: float
    most: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """Everything the drawing needs. The plot reaches from `top` to `bottom`; `kinds`: what a legend has to explain."""

    height: float
    top: float
    bottom: float
    strips: list[Strip]
    grounds: list[Band]
    marks: list[Mark]
    bars: list[Bar]
    arrows: list[Arrow]
    pool: Pool | None
    ticks: list[Tick]
    kinds: frozenset[str]
    names_left_out: int
    requests: int  # how many there are; `bars` may hold fewer


def timeline(case: Case) -> Timeline | None:
    """The picture, or None where nothing has a duration to draw."""
    ends = [row.finished for row in case.requests] + [row.finished for row in case.steps]
    end = max(ends + [row.at for row in case.queue], default=0.0)
    if end <= 0 or not case.requests:
        return None
    scale, shown = Scale(end), shown_requests(case)
    drawn_marks = marks(case, scale)
    spans = name_spans(case, end)
    names = list(spans)[:_MOST_NAMES]
    tone = tones(span.content for name in spans for span in spans[name])
    head = below(drawn_marks)
    strips = [
        Strip(name, head + STRIP * i, _bands(spans[name], head + STRIP * i, STRIP - 3, tone, scale, words=True))
        for i, name in enumerate(names)
    ]
    top = head + STRIP * len(names) + 4
    lane = LANE if len(shown) <= ROOMY else NARROW_LANE
    bars = [
        bar(row, top + lane * i, scale, failing=row.request == case.failing_request, roomy=lane == LANE)
        for i, row in enumerate(shown)
    ]
    bottom = top + lane * len(shown)
    pool = _pool(case.queue, bottom + 26, scale)
    return Timeline(
        height=bottom + 24 + (POOL + 14 if pool else 0),
        top=top,
        bottom=bottom,
        strips=strips,
        grounds=_grounds(shown, spans, top, lane, tone, scale),
        marks=drawn_marks,
        bars=bars,
        arrows=_arrows(shown, bars),
        pool=pool,
        ticks=[Tick(scale.x(at), f"{at:g} s") for at in round_places(end)],
        kinds=_kinds(bars),
        names_left_out=len(spans) - len(names),
        requests=len(case.requests),
    )


def _kinds(bars: list[Bar]) -> frozenset[str]:
    """What of a bar occurs in this picture; answers by whether they were right."""
    phases = {phase.kind for one in bars for phase in one.phases}
    answers = {one.kind for one in bars}
    pins = {"pin" for one in bars if one.pin is not None}
    return frozenset(phases | answers | pins | {"aborted" for one in bars if one.aborted})


def _bands(
    spans: list[NameSpan], y: float, height: float, tone: dict[str, int], scale: Scale, *, words: bool
) -> list[Band]:
    """The spans of one name as boxes; `words` says what each is."""
    return [
        Band(
            scale.x(span.began), round(y, 1), round(scale.x(span.ended) - scale.x(span.began), 1), round(height, 1),
            tone[span.content], one_line(f"adapter {span.content}", 24) if words else "",
        )
        for span in spans
    ]  # fmt: skip


def _grounds(
    shown: list[RequestRow],
    spans: dict[str, list[NameSpan]],
    top: float,
    lane: float,
    tone: dict[str, int],
    scale: Scale,
) -> list[Band]:
    """Behind each lane what lay behind its request's name; neighbours of one name have one ground."""
    grounds: list[Band] = []
    first = 0
    for place, row in enumerate(shown):
        following = shown[place + 1].adapter if place + 1 < len(shown) else None
        if following != row.adapter:
            y, height = top + lane * first, lane * (place + 1 - first)
            grounds += _bands(spans.get(row.adapter, []), y, height, tone, scale, words=False)
            first = place + 1
    return grounds


def _arrows(shown: list[RequestRow], bars: list[Bar]) -> list[Arrow]:
    """One for each request of which it is known whose KV it wrongly read, if both are in the picture."""
    drawn = {one.request: (row, one) for row, one in zip(shown, bars, strict=True)}
    return [
        _arrow(*drawn[row.written_by], one)
        for row, one in drawn.values()
        if row.written_by is not None and row.written_by in drawn
    ]


def _arrow(writer: RequestRow, start: Bar, end: Bar) -> Arrow:
    down = 1 if end.y > start.y else -1
    x, y = start.written, start.y + (start.height if down > 0 else 0)
    to, tip = end.x + 2, end.y + (0 if down > 0 else end.height)
    neck = tip - 6 * down
    words = one_line(f"r{writer.request}'s KV, of {writer.identity}", 40)
    fits = to - 14 - text_width(words) > LEFT and end.roomy
    return Arrow(
        path=f"M{x:g} {y:g}C{x:g} {neck:g} {to:g} {(y + tip) / 2:g} {to:g} {neck:g}",
        head=f"{to - 4:g},{neck:g} {to + 4:g},{neck:g} {to:g},{tip:g}",
        words=one_line(f"r{end.request} read what r{writer.request} had written for {writer.identity}", 200),
        label=Label(to - 12, end.y + 11, words, "end") if fits else None,
    )


def _pool(looks: list[QueueRow], top: float, scale: Scale) -> Pool | None:
    """The pool's use as steps from look to look; None where it was never in use or not told."""
    told = [(look.at, look.pool_usage) for look in looks if look.pool_usage is not None]
    most = max((usage for _, usage in told), default=0.0)
    if most <= 0:
        return None
    points = [(scale.x(at), round(top + POOL * (1 - usage / most), 1)) for at, usage in told]
    path = f"M{points[0][0]:g} {points[0][1]:g}" + "".join(f"H{x:g}V{y:g}" for x, y in points[1:]) + f"H{RIGHT:g}"
    return Pool(path, top, top + POOL, f"{100 * most:.3g} %")
