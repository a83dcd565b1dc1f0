"""The chart of a case's prompts: bars of segments, to scale in tokens, with shared prefixes, hits and wrong KV."""

from __future__ import annotations

import math
from dataclasses import dataclass

from coldproof.harness.schema.case import Case, ImageRow, RequestRow, SegmentRow
from coldproof.reports.format.text import listed, one_line
from coldproof.reports.run_report.case.cached_token_bounds import bound_violation
from coldproof.reports.run_report.case.geometry import (
    LEFT,
    RIGHT,
    ROOMY,
    TONES,
    Label,
    Scale,
    axis_ticks,
    label_within,
    lane_label,
    name_indices,
    shown_requests,
    text_width,
)

TOP = 8.0
LANE, NARROW_LANE = 54.0, 26.0
BAR, NARROW_BAR = 18.0, 10.0
_CLOSEST = 4.0  # block boundaries are not drawn if they are closer together than this
_KEYS = 12  # names in the legend


@dataclass(frozen=True, slots=True)
class SegmentBar:
    """One segment. `dotted`: another name has the same tone. `edits`: positions of changed or swapped tokens.

    `rows`: where the model gets embedding rows. `image`: what it gets in place of the whole segment.
    """

    x: float
    width: float
    tone: int
    dotted: bool
    label: str
    inherited: bool
    edits: list[float]
    rows: list[TokenRange]
    image: Thumbnail | None


@dataclass(frozen=True, slots=True)
class Blocks:
    """Block boundaries: strokes one unit wide, `gap` apart, from the end of the first whole block to the last."""

    first: float
    last: float
    gap: float


@dataclass(frozen=True, slots=True)
class TokenRange:
    """A range of a prompt's tokens."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class Thumbnail:
    """An image as a square of patches: x and y of each within the bar, and its colour. `side`: of a patch."""

    side: float
    patches: list[tuple[float, float, str]]


@dataclass(frozen=True, slots=True)
class PromptLane:
    """One prompt as a bar, with its marks and notes."""

    request: int
    y: float
    failing: bool
    label: str
    pieces: list[SegmentBar]
    blocks: Blocks | None
    shared: TokenRange | None
    hit: TokenRange | None
    wrong: TokenRange | None
    pin: Label | None
    broken: bool
    notes: list[str]
    title: str


@dataclass(frozen=True, slots=True)
class LegendEntry:
    """A legend entry: a segment name and how its segments are drawn."""

    name: str
    tone: int
    dotted: bool


@dataclass(frozen=True, slots=True)
class PromptBars:
    """All data that the template draws. `bar`: the height of a bar; `roomy`: whether there is room for text."""

    height: float
    bar: float
    roomy: bool
    lanes: list[PromptLane]
    ticks: list[tuple[float, str]]  # x and label
    keys: list[LegendEntry]
    block_size: int | None
    blocks_shown: bool
    edited: bool
    with_rows: bool
    with_images: bool
    requests: int


def prompt_bars(case: Case) -> PromptBars | None:
    """Return the chart, or None without a prompt that has tokens."""
    shown = shown_requests(case)
    end = max((row.prompt_tokens for row in shown), default=0)
    if end <= 0:
        return None
    scale = Scale(float(end))
    block = case.block_size if case.block_size and scale.x(case.block_size) - scale.x(0) >= _CLOSEST else None
    index = name_indices(segment.name for row in shown for segment in row.segments)
    roomy = len(shown) <= ROOMY
    height = LANE if roomy else NARROW_LANE
    lanes = [
        _lane(row, TOP + height * i, scale, index, block, roomy=roomy, failing=row.request == case.failing_request)
        for i, row in enumerate(shown)
    ]
    return PromptBars(
        height=TOP + height * len(shown) + 22,
        bar=BAR if roomy else NARROW_BAR,
        roomy=roomy,
        lanes=lanes,
        ticks=[(scale.x(at), f"{at:g}") for at in _ticks(end, block)],
        keys=[LegendEntry(one_line(name, 24), i % TONES, i >= TONES) for name, i in list(index.items())[:_KEYS]],
        block_size=case.block_size,
        blocks_shown=block is not None,
        edited=any(piece.edits for lane in lanes for piece in lane.pieces),
        with_rows=any(piece.rows for lane in lanes for piece in lane.pieces),
        with_images=any(piece.image for lane in lanes for piece in lane.pieces),
        requests=len(case.requests),
    )


def _ticks(end: int, block: int | None) -> list[float]:
    """Return the axis ticks: multiples of the block size if it is known, else round token counts."""
    if block is None:
        return [at for at in axis_ticks(float(end)) if at == int(at)]
    return [at * block for at in axis_ticks(end / block, most=8) if at == int(at)]


def _lane(
    row: RequestRow, y: float, scale: Scale, index: dict[str, int], block: int | None, *, roomy: bool, failing: bool
) -> PromptLane:
    hit = min(row.cached_tokens or 0, row.prompt_tokens)
    wrong = [min(position, row.prompt_tokens) for position in row.wrong_kv]
    wrong_text = f"wrong KV from position {row.wrong_kv[0]} to {row.wrong_kv[1]}" if len(row.wrong_kv) == 2 else ""
    return PromptLane(
        request=row.request,
        y=y,
        failing=failing,
        label=lane_label(row),
        pieces=_pieces(row.segments, scale, index, roomy=roomy),
        blocks=_blocks(row.prompt_tokens, scale, block),
        shared=_token_range(0, row.shared_tokens, scale),
        hit=_token_range(0, hit, scale),
        wrong=_token_range(wrong[0], wrong[1] + 1, scale) if wrong_text else None,
        pin=label_within(scale.x(wrong[0]), y + BAR + 26, f"✕ {wrong_text}") if wrong_text and roomy else None,
        broken=bool(bound_violation(row)),
        notes=_notes(row) if roomy else [one_line(f"{hit} hit of {row.prompt_tokens}", 30)],
        title=one_line("; ".join([segments_text(row), *_notes(row), *filter(None, [wrong_text])]), 400),
    )


def _pieces(segments: list[SegmentRow], scale: Scale, index: dict[str, int], *, roomy: bool) -> list[SegmentBar]:
    pieces, at = [], 0
    for segment in segments:
        x = scale.x(at)
        width = round(scale.x(at + segment.tokens) - x, 1)
        name = one_line(segment.image.name if segment.image else segment.name, 40)
        image = _thumbnail(segment.image, width, BAR if roomy else NARROW_BAR) if segment.image else None
        edits = [float(i) for i in (segment.changed, segment.swapped) if i is not None]
        edits += [segment.tokens / 2] if segment.image and segment.image.changed else []
        pieces.append(
            SegmentBar(
                x=x,
                width=width,
                tone=index[segment.name] % TONES,
                dotted=index[segment.name] >= TONES,
                label=name if roomy and text_width(name) + 8 + (BAR if image else 0) <= width else "",
                inherited=segment.inherited is not None,
                edits=[scale.x(at + edit + 0.5) for edit in edits],
                image=image,
                rows=[found for a, b in segment.rows or () if (found := _token_range(at + a, at + b, scale))],
            )
        )
        at += segment.tokens
    return pieces


def _thumbnail(image: ImageRow, width: float, height: float) -> Thumbnail | None:
    """Return an image as patches at the start of a bar; None if the colours are not those of a square."""
    patches = math.isqrt(len(image.colours))
    if not patches or patches * patches != len(image.colours):
        return None
    side = round(min(width, height) / patches, 2)
    return Thumbnail(
        side,
        [
            (i % patches * side, i // patches * side, f"#{colour & 0xFFFFFF:06x}")
            for i, colour in enumerate(image.colours)
        ],
    )


def _blocks(tokens: int, scale: Scale, block: int | None) -> Blocks | None:
    """Return the boundaries of the whole blocks, or None if there are none."""
    if block is None or tokens < block:
        return None
    distance = round((RIGHT - LEFT) * block / scale.end, 3)  # computed from exact values: rounding errors would add up
    return Blocks(scale.x(block), scale.x(tokens // block * block) + 1, distance - 1)


def _token_range(first: int, last: int, scale: Scale) -> TokenRange | None:
    x = scale.x(first)
    return TokenRange(x, round(max(scale.x(last) - x, 2.0), 1)) if last > first else None


def _notes(row: RequestRow) -> list[str]:
    hit = (
        "cached tokens not reported" if row.cached_tokens is None else f"{row.cached_tokens} of {row.prompt_tokens} hit"
    )
    shared = "no shared prefix" if row.shared_with is None else f"{row.shared_tokens} shared with r{row.shared_with}"
    return [hit, shared]


def segments_text(row: RequestRow) -> str:
    """Return the segments of a prompt as text."""
    return " + ".join(segment_text(segment) for segment in row.segments)


def segment_text(segment: SegmentRow) -> str:
    """Return a segment's name, length, edits and the request that it was taken from."""
    details = []
    if segment.inherited is not None:
        details.append(f"from r{segment.inherited}")
    if segment.changed is not None:
        details.append(f"token {segment.changed} changed")
    if segment.swapped is not None:
        details.append(f"tokens {segment.swapped} and {segment.swapped + 1} swapped")
    if segment.image:
        details.append(image_text(segment.image))
    if segment.rows:
        details.append(f"embedding rows at {listed([f'{first}-{end - 1}' for first, end in segment.rows])}")
    return f"{segment.name}:{segment.tokens}" + (f" ({listed(details)})" if details else "")


def image_text(image: ImageRow) -> str:
    """Return an image's name, what is different about it, and how it was sent."""
    details = [f"image {image.name}"]
    details += ["one pixel changed"] if image.changed else []
    details += [f"named {image.uuid} by the client"] if image.uuid else []
    told = [f"processed with {image.arguments}"] if image.arguments else []
    return ", ".join([*details, f"sent as {image.encoding}", *told])
