"""The prompts of a case as bars of their segments, to scale in tokens: what repeats, what was hit, what was wrong."""

from __future__ import annotations

from dataclasses import dataclass

from reports.bounds import bound_broken
from reports.drawing import (
    LEFT,
    RIGHT,
    ROOMY,
    TONES,
    Label,
    Scale,
    Tick,
    label_within,
    lane_label,
    places,
    round_places,
    shown_requests,
    text_width,
)
from reports.schema import Case, RequestRow, SegmentRow
from reports.text import listed, one_line

TOP = 8.0
LANE, NARROW_LANE = 54.0, 26.0
BAR, NARROW_BAR = 18.0, 10.0
_CLOSEST = 4.0  # block boundaries nearer to one another than this are a grey mist
_KEYS = 12  # names explained below the picture


@dataclass(frozen=True, slots=True)
class Piece:
    """One segment. `dotted`: another name had its tone already. `edits`: where a token was changed or two swapped."""

    x: float
    width: float
    tone: int
    dotted: bool
    label: str
    inherited: bool
    edits: list[float]


@dataclass(frozen=True, slots=True)
class Blocks:
    """Strokes one unit wide from the first whole block's end to the last one's, with so much room between them."""

    first: float
    last: float
    gap: float


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of a prompt, from its start or from `x` on."""

    x: float
    width: float


@dataclass(frozen=True, slots=True)
class PromptLane:
    """One prompt."""

    request: int
    y: float
    height: float
    roomy: bool
    failing: bool
    label: str
    pieces: list[Piece]
    blocks: Blocks | None
    shared: Stretch | None
    hit: Stretch | None
    wrong: Stretch | None
    pin: Label | None
    broken: bool
    notes: list[str]
    title: str


@dataclass(frozen=True, slots=True)
class Key:
    """A name and how its segments are drawn."""

    name: str
    tone: int
    dotted: bool


@dataclass(frozen=True, slots=True)
class PromptBars:
    """Everything the drawing needs."""

    height: float
    lanes: list[PromptLane]
    ticks: list[Tick]
    keys: list[Key]
    block_size: int | None
    blocks_shown: bool
    edited: bool
    requests: int


def prompt_bars(case: Case) -> PromptBars | None:
    """The picture, or None where nobody recorded what the prompts are made of."""
    shown = shown_requests(case)
    end = max((row.prompt_tokens for row in shown), default=0)
    if end <= 0 or not any(row.segments for row in shown):
        return None
    scale = Scale(float(end))
    block = case.block_size if case.block_size and scale.x(case.block_size) - scale.x(0) >= _CLOSEST else None
    place = places(segment.name for row in shown for segment in row.segments)
    roomy = len(shown) <= ROOMY
    height = LANE if roomy else NARROW_LANE
    lanes = [
        _lane(row, TOP + height * i, scale, place, block, roomy=roomy, failing=row.request == case.failing_request)
        for i, row in enumerate(shown)
    ]
    return PromptBars(
        height=TOP + height * len(shown) + 22,
        lanes=lanes,
        ticks=[Tick(scale.x(at), f"{at:g}") for at in _places(end, block)],
        keys=[Key(one_line(name, 24), i % TONES, i >= TONES) for name, i in list(place.items())[:_KEYS]],
        block_size=case.block_size,
        blocks_shown=block is not None,
        edited=any(piece.edits for lane in lanes for piece in lane.pieces),
        requests=len(case.requests),
    )


def _places(end: int, block: int | None) -> list[float]:
    """Whole blocks where they are known, a round number of them apart."""
    if block is None:
        return [at for at in round_places(float(end)) if at == int(at)]
    return [at * block for at in round_places(end / block, most=8) if at == int(at)]


def _lane(
    row: RequestRow, y: float, scale: Scale, place: dict[str, int], block: int | None, *, roomy: bool, failing: bool
) -> PromptLane:
    height = BAR if roomy else NARROW_BAR
    hit = min(row.cached_tokens or 0, row.prompt_tokens)
    wrong = [min(position, row.prompt_tokens) for position in row.wrong_kv]
    words = f"wrong KV from position {row.wrong_kv[0]} to {row.wrong_kv[1]}" if len(row.wrong_kv) == 2 else ""
    return PromptLane(
        request=row.request,
        y=y,
        height=height,
        roomy=roomy,
        failing=failing,
        label=lane_label(row),
        pieces=_pieces(row.segments, scale, place, roomy=roomy),
        blocks=_blocks(row.prompt_tokens, scale, block),
        shared=_stretch(0, row.shared_tokens, scale),
        hit=_stretch(0, hit, scale),
        wrong=_stretch(wrong[0], wrong[1] + 1, scale) if words else None,
        pin=label_within(scale.x(wrong[0]), y + height + 26, f"✕ {words}") if words and roomy else None,
        broken=bool(bound_broken(row)),
        notes=_notes(row) if roomy else [one_line(f"{hit} hit of {row.prompt_tokens}", 30)],
        title=one_line("; ".join([segments_in_words(row), *_notes(row), *filter(None, [words])]), 400),
    )


def _pieces(segments: list[SegmentRow], scale: Scale, place: dict[str, int], *, roomy: bool) -> list[Piece]:
    pieces, at = [], 0
    for segment in segments:
        x = scale.x(at)
        width = round(scale.x(at + segment.tokens) - x, 1)
        name = one_line(segment.name, 40)
        edits = [i for i in (segment.changed, segment.swapped) if i is not None]
        pieces.append(
            Piece(
                x=x,
                width=width,
                tone=place[segment.name] % TONES,
                dotted=place[segment.name] >= TONES,
                label=name if roomy and text_width(name) + 8 <= width else "",
                inherited=segment.inherited is not None,
                edits=[scale.x(at + edit + 0.5) for edit in edits],
            )
        )
        at += segment.tokens
    return pieces


def _blocks(tokens: int, scale: Scale, block: int | None) -> Blocks | None:
    """The boundaries of whole blocks; None where there is none."""
    if block is None or tokens < block:
        return None
    apart = round((RIGHT - LEFT) * block / scale.end, 3)  # not of rounded places: they would add up
    return Blocks(scale.x(block), scale.x(tokens // block * block) + 1, apart - 1)


def _stretch(first: int, last: int, scale: Scale) -> Stretch | None:
    x = scale.x(first)
    return Stretch(x, round(max(scale.x(last) - x, 2.0), 1)) if last > first else None


def _notes(row: RequestRow) -> list[str]:
    hit = "hits not reported" if row.cached_tokens is None else f"{row.cached_tokens} of {row.prompt_tokens} hit"
    begun = (
        "begins like no earlier prompt"
        if row.shared_with is None
        else f"{row.shared_tokens} begin as r{row.shared_with}"
    )
    return [hit, begun]


def segments_in_words(row: RequestRow) -> str:
    """The stretches of a prompt, for the table."""
    return " + ".join(segment_in_words(segment) for segment in row.segments)


def segment_in_words(segment: SegmentRow) -> str:
    """Name, length, edits and where it was taken over from."""
    said = []
    if segment.inherited is not None:
        said.append(f"from r{segment.inherited}")
    if segment.changed is not None:
        said.append(f"token {segment.changed} changed")
    if segment.swapped is not None:
        said.append(f"tokens {segment.swapped} and {segment.swapped + 1} swapped")
    return f"{segment.name}:{segment.tokens}" + (f" ({listed(said)})" if said else "")
