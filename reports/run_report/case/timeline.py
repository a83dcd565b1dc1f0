"""The timeline of one case on a linear axis: a lane for each request, the adapter names, and the KV pool.

The background of a lane shows which content the request's adapter name referred to at each time. A request that reused
KV of another content is visible because the two backgrounds differ.
"""

from __future__ import annotations

from dataclasses import dataclass

from coldproof.harness.schema.case import Case, QueueRow, RequestRow
from coldproof.reports.format.text import one_line
from coldproof.reports.run_report.case.adapter_spans import NameSpan, name_spans
from coldproof.reports.run_report.case.geometry import (
    LEFT,
    RIGHT,
    ROOMY,
    TONES,
    Label,
    Scale,
    axis_ticks,
    name_indices,
    shown_requests,
    text_width,
)
from coldproof.reports.run_report.case.request_bars import Bar, bar
from coldproof.reports.run_report.case.timeline_marks import Mark, labels_bottom, marks

STRIP = 18.0  # one adapter's name
LANE, NARROW_LANE = 48.0, 20.0
POOL = 34.0
_MAX_NAMES = 6


@dataclass(frozen=True, slots=True)
class Band:
    """A time span in which a name referred to one content."""

    x: float
    y: float
    width: float
    height: float
    tone: int
    words: str = ""


@dataclass(frozen=True, slots=True)
class AdapterLane:
    """The contents that one adapter name referred to."""

    name: str
    y: float
    bands: list[Band]


@dataclass(frozen=True, slots=True)
class Arrow:
    """From the request that computed a prefix to the request that wrongly reused it."""

    path: str
    head: str
    words: str
    label: Label | None


@dataclass(frozen=True, slots=True)
class Pool:
    """The share of the KV pool in use, sample by sample."""

    path: str
    top: float
    bottom: float
    most: str


@dataclass(frozen=True, slots=True)
class Timeline:
    """All data that the template draws. The plot is from `top` to `bottom`; `kinds`: what the legend explains."""

    height: float
    top: float
    bottom: float
    strips: list[AdapterLane]
    grounds: list[Band]
    marks: list[Mark]
    bars: list[Bar]
    arrows: list[Arrow]
    pool: Pool | None
    ticks: list[tuple[float, str]]  # x and label
    kinds: frozenset[str]
    names_left_out: int
    requests: int  # of the case; `bars` may have fewer


def timeline(case: Case) -> Timeline | None:
    """Return the timeline, or None if there is no request or no duration."""
    ends = [row.finished for row in case.requests] + [row.finished for row in case.steps]
    end = max(ends + [row.at for row in case.queue], default=0.0)
    if end <= 0 or not case.requests:
        return None
    scale, shown = Scale(end), shown_requests(case)
    drawn_marks = marks(case, scale)
    spans = name_spans(case, end)
    names = list(spans)[:_MAX_NAMES]
    index = name_indices(span.content for name in spans for span in spans[name])
    tone = {content: place % TONES for content, place in index.items()}
    head = labels_bottom(drawn_marks)
    strips = [
        AdapterLane(name, head + STRIP * i, _bands(spans[name], head + STRIP * i, STRIP - 3, tone, scale, words=True))
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
        ticks=[(scale.x(at), f"{at:g} s") for at in axis_ticks(end)],
        kinds=_kinds(bars),
        names_left_out=len(spans) - len(names),
        requests=len(case.requests),
    )


def _kinds(bars: list[Bar]) -> frozenset[str]:
    """Return the kinds of phases, answers and marks that occur in this timeline."""
    phases = {phase.kind for one in bars for phase in one.phases}
    answers = {one.kind for one in bars}
    pins = {"pin" for one in bars if one.pin is not None}
    return frozenset(phases | answers | pins | {"aborted" for one in bars if one.aborted})


def _bands(
    spans: list[NameSpan], y: float, height: float, tone: dict[str, int], scale: Scale, *, words: bool
) -> list[Band]:
    """Return the spans of one name as boxes. `words`: with a text in each."""
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
    """Return the background of each lane. Adjacent lanes with the same adapter name share one background."""
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
    """Return an arrow for each request with a known source of its wrong KV, if both requests are drawn."""
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
    words = one_line(f"KV of r{writer.request} ({writer.identity})", 40)
    fits = to - 14 - text_width(words) > LEFT and end.roomy
    return Arrow(
        path=f"M{x:g} {y:g}C{x:g} {neck:g} {to:g} {(y + tip) / 2:g} {to:g} {neck:g}",
        head=f"{to - 4:g},{neck:g} {to + 4:g},{neck:g} {to:g},{tip:g}",
        words=one_line(f"r{end.request} reused KV that r{writer.request} had computed for {writer.identity}", 200),
        label=Label(to - 12, end.y + 11, words, "end") if fits else None,
    )


def _pool(samples: list[QueueRow], top: float, scale: Scale) -> Pool | None:
    """Return the pool usage as a step curve, or None if it was always zero or not reported."""
    usages = [(sample.at, sample.pool_usage) for sample in samples if sample.pool_usage is not None]
    most = max((usage for _, usage in usages), default=0.0)
    if most <= 0:
        return None
    points = [(scale.x(at), round(top + POOL * (1 - usage / most), 1)) for at, usage in usages]
    path = f"M{points[0][0]:g} {points[0][1]:g}" + "".join(f"H{x:g}V{y:g}" for x, y in points[1:]) + f"H{RIGHT:g}"
    return Pool(path, top, top + POOL, f"{100 * most:.3g} %")
