"""Prompts with embedding rows that differ from each other in little: in a row, in one value, or in where rows are.

The first choice of every draw is the simplest: tokens and then rows, sent again, and one other row.
"""

from __future__ import annotations

import msgspec
from hypothesis import strategies as st

from coldproof.harness.workload.generators.identities import (
    PLAIN,
    SALTED,
    TENANT,
    AdapterAndSalt,
    crowds,
    load_tenant,
    request_for,
)
from coldproof.harness.workload.generators.prompts import WorkloadLimits, stems
from coldproof.harness.workload.steps import Burst, Prompt, Request, Rows, Segment, Step, Workload
from coldproof.harness.workload.tokens import NONCE_TOKENS, new_prompt_length
from coldproof.harness.workload.validity import rows_fit

EDITS = ("row", "mask", "value", "swap", "mask", "tokens")


@st.composite
def near_embeddings(
    draw: st.DrawFn, limits: WorkloadLimits, *, with_adapter: bool, zeros: bool = False, alone: bool = False
) -> Workload:
    """Draw a prompt with rows and up to four near-collisions of it, with salts and an adapter; then bursts of them.

    `zeros`: all its token ids are 0, which is what an engine may put in place of a row. `alone`: nothing is under its
    rows and tokens, and with `zeros` its rows are zeros.
    """
    steps: list[Step] = []
    identities = [PLAIN, *draw(st.lists(st.sampled_from(SALTED), min_size=1, max_size=2, unique=True))]
    if with_adapter and draw(st.booleans()):
        steps.append(load_tenant(limits))
        identities.append(TENANT)
    base = draw(segments_with_rows(limits, zeros=zeros, alone=alone))
    near = draw(st.lists(near_collisions(limits, base), min_size=1, max_size=limits.most(4, least=1)))
    sent: list[tuple[Segment, AdapterAndSalt]] = [(base, PLAIN), *((other, PLAIN) for other in near), (base, PLAIN)]
    sent += [(base, identity) for identity in identities[1:]]
    for other in near[: limits.most(2)]:
        sent.append((other, draw(st.sampled_from(identities))))
    requests = [request_for(limits, (segment,), identity) for segment, identity in sent]
    steps += [Burst(requests=(one,)) for one in requests]
    steps += draw(crowds(limits, requests))
    return Workload(tuple(steps))


@st.composite
def conversations_with_rows(draw: st.DrawFn, limits: WorkloadLimits) -> Workload:
    """Draw a prompt with rows whose answer fills a block, and next turns of it, with and without rows of their own."""
    base = draw(segments_with_rows(limits))
    answer = draw(st.sampled_from(limits.sizes((limits.unit + 2, 2 * limits.unit + 2))))
    requests = [msgspec.structs.replace(request_for(limits, (base,), PLAIN), max_tokens=answer)]
    length = new_prompt_length(requests[0].prompt) + answer
    for turn in range(draw(st.integers(1, limits.most(2, least=1)))):
        length += limits.unit + 1 + answer
        if length > limits.longest:
            break
        own = Segment(f"turn {turn}", limits.unit + 1)
        if draw(st.booleans()):
            own = msgspec.structs.replace(own, rows=Rows(((1, limits.unit),)))
        requests.append(Request(prompt=Prompt((own,), continues=turn), max_tokens=answer))
    return Workload(tuple(Burst(requests=(request,)) for request in requests))


@st.composite
def segments_with_rows(draw: st.DrawFn, limits: WorkloadLimits, *, zeros: bool = False, alone: bool = False) -> Segment:
    """Draw a leading segment with rows: at its end, everywhere, in its middle, in two places, or at every other place.

    Spans begin and end at, just before or just after a block boundary, and inside blocks.
    """
    stem = draw(stems(limits))
    length, unit = stem.length, limits.unit
    edge = draw(st.sampled_from((0, 1, -1, unit // 2)))
    first = min(max(1, unit - NONCE_TOKENS + edge), length - 2)
    match draw(st.sampled_from(("end", "all", "middle", "two", "comb"))):
        case "all":
            spans: tuple[tuple[int, int], ...] = ((0, length),)
        case "middle":
            spans = ((first, min(length, first + draw(st.sampled_from((1, 2, unit - 1, unit, unit + 1))))),)
        case "two":
            middle = (first + length) // 2
            spans = ((first, middle), (min(middle + draw(st.sampled_from((1, 3))), length - 1), length))
        case "comb":
            spans = tuple((place, place + 1) for place in range(first, min(length, first + unit), 2))
        case _:
            spans = ((first, length),)
    equal = draw(st.sampled_from((False, False, True)))
    return msgspec.structs.replace(stem, rows=Rows(spans, equal=equal, blank=zeros, alone=alone))


@st.composite
def near_collisions(draw: st.DrawFn, limits: WorkloadLimits, base: Segment) -> Segment:
    """Draw a segment that differs from `base` in one row or token, in one value of a row, in the order of two places,
    in which places are rows, or by having no rows at all.
    """
    assert base.rows
    places = [place for first, end in base.rows.spans for place in range(first, end)]
    edge = [place for place in places if (place + NONCE_TOKENS) % limits.block in (0, limits.block - 1)]
    place = draw(st.sampled_from([*(edge or places)[:4], places[0], places[-1], places[len(places) // 2]]))
    match draw(st.sampled_from(EDITS)):
        case "mask":
            return msgspec.structs.replace(base, rows=draw(st.sampled_from(shifted(base.rows, base.length))))
        case "value":
            return msgspec.structs.replace(base, rows=msgspec.structs.replace(base.rows, nudged=place))
        case "swap":
            return msgspec.structs.replace(base, swapped=min(place, base.length - 2))
        case "tokens":
            return Segment(base.name, base.length)
    return msgspec.structs.replace(base, changed=place)


def shifted(rows: Rows, length: int) -> list[Rows]:
    """Return the rows with one span that begins or ends a place earlier or later, or both.

    None of them begins at another kind of place, because then the prompts would have different nonces.
    """
    found = []
    for at, (first, end) in enumerate(rows.spans[:4]):
        for before, after in ((1, 0), (0, -1), (-1, 0), (0, 1), (1, 1), (-1, -1)):
            spans = (*rows.spans[:at], (first + before, end + after), *rows.spans[at + 1 :])
            moved = msgspec.structs.replace(rows, spans=spans)
            if rows_fit(moved, length) and moved.covers(0) == rows.covers(0):
                found.append(moved)
    return found or [rows]
