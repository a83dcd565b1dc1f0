"""Which stretch of a prompt is what: the segments of a workload found again in the tokens that were sent.

What a chat's template adds is called so; a chat whose tokenizer leaves nothing of the segments to be found is one
stretch, for a wrong picture is worse than none.
"""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from harness.history import History, Outcome
from harness.workload import Request, Segment, nonce_tokens, segment_tokens
from reports.schema import SegmentRow

Piece = tuple[SegmentRow, tuple[int, ...]]

NONCE, TEMPLATE = "nonce", "template"
TELLING = 4  # so many tokens are hardly in a prompt twice by chance


def segment_rows(outcome: Outcome, asked: Mapping[int, Request], history: History) -> list[SegmentRow]:
    """The stretches of a prompt from its start; together they are all of it."""
    outcomes = {one.request: one for one in history.outcomes}
    rows = located(pieces(outcome.request, asked, outcomes, history.nonce), outcome.prompt)
    return [SegmentRow(name="chat", tokens=len(outcome.prompt))] if rows is None else rows


def pieces(number: int, asked: Mapping[int, Request], outcomes: Mapping[int, Outcome], nonce: str) -> list[Piece]:
    """What a prompt is made of: the nonce or an earlier request with its answer, then its own segments."""
    prompt = asked[number].prompt
    before = outcomes.get(prompt.continues) if prompt.continues is not None else None
    if before is None:
        found = [(SegmentRow(name=NONCE, tokens=len(nonce_tokens(nonce))), nonce_tokens(nonce))]
    else:
        answer = SegmentRow(name=f"answer of r{before.request}", tokens=len(before.tokens))
        earlier = [*pieces(before.request, asked, outcomes, nonce), (answer, before.token_ids)]
        found = [(msgspec.structs.replace(row, inherited=before.request), tokens) for row, tokens in earlier]
    return [*found, *((row_of(segment), segment_tokens(nonce, segment)) for segment in prompt.segments)]


def row_of(segment: Segment) -> SegmentRow:
    """A segment's row."""
    return SegmentRow(name=segment.name, tokens=segment.length, changed=segment.changed, swapped=segment.swapped)


def located(wanted: list[Piece], prompt: tuple[int, ...]) -> list[SegmentRow] | None:
    """The pieces with what lies between them, or None where one is not found or could be in several places."""
    rows: list[SegmentRow] = []
    at = 0
    for row, tokens in wanted:
        if not tokens:
            continue
        start = place(tokens, prompt, at)
        if start is None:
            return None
        rows += [SegmentRow(name=TEMPLATE, tokens=start - at)] if start > at else []
        rows.append(row)
        at = start + len(tokens)
    return [*rows, SegmentRow(name=TEMPLATE, tokens=len(prompt) - at)] if at < len(prompt) else rows


def place(tokens: tuple[int, ...], prompt: tuple[int, ...], at: int) -> int | None:
    """Where a piece begins: here, or at its first place behind the template; a short one needs to be there but once."""
    size = len(tokens)
    if prompt[at : at + size] == tokens:
        return at
    found = [i for i in range(at, len(prompt) - size + 1) if prompt[i : i + size] == tokens]
    return found[0] if found and (size >= TELLING or len(found) == 1) else None
