"""Locates the segments of a workload in the prompt tokens that were sent.

Tokens of a chat template are a segment `template`. If the segments of a chat cannot be located, the whole prompt is one
segment, because a wrong picture is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from coldproof.adapters.protocol.embedding_rows import is_row
from coldproof.adapters.protocol.images import PATCHES, image_and_offset, pixels
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.schema.case import ImageRow, SegmentRow
from coldproof.harness.workload.steps import Image, Request, Segment
from coldproof.harness.workload.tokens import first_tokens, segment_tokens

Piece = tuple[SegmentRow, tuple[int, ...]]

NONCE, TEMPLATE = "nonce", "template"
MIN_UNIQUE_TOKENS = 4  # a piece of this length hardly occurs twice by chance


def segment_rows(outcome: Outcome, asked: Mapping[int, Request], history: History) -> list[SegmentRow]:
    """Return the segments of a prompt in order. Together they cover the whole prompt."""
    outcomes = {one.request: one for one in history.outcomes}
    rows = locate_pieces(pieces(outcome.request, asked, outcomes, history.nonce), outcome.prompt)
    return [SegmentRow(name="chat", tokens=len(outcome.prompt))] if rows is None else rows


def pieces(number: int, asked: Mapping[int, Request], outcomes: Mapping[int, Outcome], nonce: str) -> list[Piece]:
    """Return the pieces of a prompt: the nonce or an earlier request with its answer, then its own segments."""
    prompt = asked[number].prompt
    before = outcomes.get(prompt.continues) if prompt.continues is not None else None
    if before is None:
        start = first_tokens(nonce, prompt.segments)
        found = [(SegmentRow(name=NONCE, tokens=len(start)), start)]
    else:
        answer = SegmentRow(name=f"answer of r{before.request}", tokens=len(before.tokens))
        earlier = [*pieces(before.request, asked, outcomes, nonce), (answer, before.token_ids)]
        left = cut_pieces(earlier, prompt.start, prompt.end)
        found = [(msgspec.structs.replace(row, inherited=before.request), tokens) for row, tokens in left]
    for own in prompt.segments:
        tokens = segment_tokens(nonce, own)
        found.append((SegmentRow(name=own.name, tokens=own.length, **marks(own, tokens)), tokens))
    return found


def marks(segment: Segment, tokens: tuple[int, ...]) -> dict[str, Any]:
    """Return where a segment is edited, where it has embedding rows, and the image that it is."""
    edits: dict[str, Any] = {"changed": segment.changed, "swapped": segment.swapped}
    if segment.image:
        return edits | {"image": image_row(segment.image, tokens)}
    if not segment.rows:
        return edits
    if edits["changed"] is None:
        edits["changed"] = segment.rows.nudged
    return edits | {"rows": row_ranges(tokens)}


def image_row(image: Image, tokens: tuple[int, ...]) -> ImageRow:
    """Return an image with the colours of its patches."""
    number, _ = image_and_offset(tokens[0])
    patches = pixels(number, PATCHES)
    return ImageRow(
        name=image.name,
        colours=[int.from_bytes(patches[i : i + 3]) for i in range(0, len(patches), 3)],
        changed=image.pixel is not None,
        uuid=image.uuid or "",
        encoding=image.encoding.name.lower(),
        arguments=image.arguments.text(),
    )


def row_ranges(tokens: tuple[int, ...]) -> list[tuple[int, int]]:
    """Return the ranges of positions that have rows, each from its first position to one after its last."""
    edges = [at for at in range(len(tokens) + 1) if shown(tokens, at) != shown(tokens, at - 1)]
    return list(zip(edges[::2], edges[1::2], strict=True))


def shown(tokens: tuple[int, ...], at: int) -> bool:
    """Return whether a position has a row; False outside of the prompt."""
    return 0 <= at < len(tokens) and is_row(tokens[at])


def cut_pieces(whole: list[Piece], start: int, end: int | None) -> list[Piece]:
    """Return what is left of the pieces of a history from token `start` to token `end`, as in a Python slice."""
    left: list[Piece] = []
    at = 0
    if end is not None and end < 0:
        end += sum(len(tokens) for _, tokens in whole)
    for row, tokens in whole:
        first = max(0, start - at)
        part = tokens[first : None if end is None else max(0, end - at)]
        at += len(tokens)
        if part == tokens:
            left.append((row, part))
        elif part:
            name = f"{row.name}[{first}:]" if first else row.name
            left.append((SegmentRow(name=name, tokens=len(part)), part))
    return left


def locate_pieces(wanted: list[Piece], prompt: tuple[int, ...]) -> list[SegmentRow] | None:
    """Return the pieces with template tokens between them; None if a piece is missing or ambiguous."""
    rows: list[SegmentRow] = []
    at = 0
    for row, tokens in wanted:
        if not tokens:
            continue
        start = find_piece(tokens, prompt, at)
        if start is None:
            return None
        rows += [SegmentRow(name=TEMPLATE, tokens=start - at)] if start > at else []
        rows.append(row)
        at = start + len(tokens)
    return [*rows, SegmentRow(name=TEMPLATE, tokens=len(prompt) - at)] if at < len(prompt) else rows


def find_piece(tokens: tuple[int, ...], prompt: tuple[int, ...], at: int) -> int | None:
    """Return the start of a piece: `at`, or its first place after it. A short piece must occur only once."""
    size = len(tokens)
    if prompt[at : at + size] == tokens:
        return at
    found = [i for i in range(at, len(prompt) - size + 1) if prompt[i : i + size] == tokens]
    return found[0] if found and (size >= MIN_UNIQUE_TOKENS or len(found) == 1) else None
