"""Tokens of segments and nonces, and their text. The same nonce and name always give the same tokens."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Sequence

from coldproof.adapters.protocol.embedding_rows import NO_ROW, VARIANTS, ZERO_ROW, row_id
from coldproof.adapters.protocol.images import SentImage, image_id, image_positions, uuid_number
from coldproof.harness.workload.steps import Prompt, Rows, Segment

FIRST_TOKEN, LAST_TOKEN = 32, 126  # printable bytes: plain tokens in every byte-level or larger vocabulary
NONCES_APART = 64  # successive runs on one engine whose prompts start with different tokens; there are 95 tokens
NONCE_BYTES = 8  # no two examples of a run, nor of its shards, have the same nonce
NONCE_TOKENS = 4  # 95**4 values, so that two examples of a run do not collide
PART_SEPARATOR = "+"  # between the parts of a symbol that consists of several names


def segment_tokens(nonce: str, segment: Segment) -> tuple[int, ...]:
    """Return the tokens of a segment with a nonce. A shorter segment of the same name is a prefix.

    A changed token always differs; if two swapped tokens are equal, the segment is unchanged. At positions where the
    model gets embedding rows, these are the ids of the rows.
    """
    if segment.rows:
        return tuple(seen for seen, _ in seen_and_hidden(nonce, segment, segment.rows))
    if segment.image:
        variant = 0 if segment.image.pixel is None else 1 + segment.image.pixel
        image = image_id(f"{nonce}/{segment.image.name}", variant, segment.image.arguments.look)
        return image_positions(image, segment.length)
    return tuple(edited_tokens(nonce, segment.name, segment.length, segment.changed, segment.swapped))


def drawn_tokens(nonce: str, name: str, length: int) -> list[int]:
    """Return the tokens of a name. Scripts of cases contain this function, and the next one if they need it."""
    source = random.Random(f"{nonce}/{name}")
    return [source.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(length)]


def edited_tokens(
    nonce: str, name: str, length: int, changed: int | None = None, swapped: int | None = None
) -> list[int]:
    """Return the tokens of a segment without rows or an image."""
    tokens = drawn_tokens(nonce, name, length)
    if changed is not None:
        tokens[changed] = FIRST_TOKEN + (tokens[changed] - FIRST_TOKEN + 1) % (LAST_TOKEN - FIRST_TOKEN + 1)
    if swapped is not None:
        tokens[swapped], tokens[swapped + 1] = tokens[swapped + 1], tokens[swapped]
    return tokens


def hidden_tokens(nonce: str, segment: Segment) -> tuple[int, ...]:
    """Return what a request also carries at each position of a segment: the token under a row, the row under a token.

    There is no row under the tokens of a segment without rows. The first position of an image carries how it is sent.
    """
    if segment.rows:
        return tuple(hidden for _, hidden in seen_and_hidden(nonce, segment, segment.rows))
    if segment.image:
        uuid = 0 if segment.image.uuid is None else uuid_number(f"{nonce}/{segment.image.uuid}")
        sent = SentImage(segment.image.encoding, uuid, segment.image.arguments)
        return (sent.hidden(), *(NO_ROW,) * (segment.length - 1))
    return (NO_ROW,) * segment.length


def seen_and_hidden(nonce: str, segment: Segment, rows: Rows) -> list[tuple[int, int]]:
    """Return what the model sees at each position of a segment with rows, and what it does not see there.

    Edits of the segment change what it sees.
    """
    tokens = segment_tokens(nonce, Segment(segment.name, segment.length))
    edited = segment_tokens(nonce, Segment(segment.name, segment.length, segment.changed))
    found = []
    for position in range(segment.length):
        changed, blank = position == segment.changed, rows.blank
        if rows.covers(position):
            seen = segment_row(nonce, segment, rows, position, changed=changed, nudged=position == rows.nudged)
            found.append((seen, 0 if blank or rows.alone else tokens[position]))
        else:
            row = NO_ROW if rows.alone else segment_row(nonce, segment, rows, position)
            found.append((0 if blank and not changed else edited[position], row))
    if segment.swapped is not None:
        first, then = segment.swapped, segment.swapped + 1
        found[first], found[then] = found[then], found[first]
    return found


def segment_row(
    nonce: str, segment: Segment, rows: Rows, position: int, *, changed: bool = False, nudged: bool = False
) -> int:
    """Return the id of a segment's row at a position: another row if it is changed, one other value if nudged."""
    if rows.blank and rows.alone and not changed and not nudged:
        return ZERO_ROW
    place = "changed" if changed else 0 if rows.equal else position
    variant = 1 + position % (VARIANTS - 1) if nudged else 0
    return row_id(f"{nonce}/{segment.name}/{place}", variant)


def first_tokens(nonce: str, segments: Sequence[Segment]) -> tuple[int, ...]:
    """Return the first ids of a prompt with these segments: its nonce's tokens, or rows in place of them if the first
    segment begins with a row.
    """
    rows = segments[0].rows if segments else None
    if not rows or not rows.covers(0):
        return nonce_tokens(nonce)
    return tuple(row_id(f"{nonce} {place}") for place in range(NONCE_TOKENS))


def nonce_tokens(nonce: str) -> tuple[int, ...]:
    """Return the first tokens of every prompt of a run, so that no example hits what another one cached."""
    digest = hashlib.sha256(nonce.encode()).digest()
    return tuple(FIRST_TOKEN + byte % (LAST_TOKEN - FIRST_TOKEN + 1) for byte in digest[:NONCE_TOKENS])


def new_nonce(earlier: Sequence[str]) -> str:
    """Return a nonce of 16 hex digits for an engine that has seen the `earlier` ones, the latest last.

    Its first token differs from those of the latest nonces. Some engines can hit a single token of an earlier run.
    Where the engine's key has no adapter, that token may be another adapter's (llama.cpp#26207): a fault, but not of
    this run.
    """
    taken = {nonce_tokens(nonce)[0] for nonce in earlier[-NONCES_APART:]}
    nonce = secrets.token_hex(NONCE_BYTES)
    while nonce_tokens(nonce)[0] in taken:
        nonce = secrets.token_hex(NONCE_BYTES)
    return nonce


def wire_name(symbol: str, nonce: str) -> str:
    """Return the name that is sent for a symbol: each part followed by the nonce, joined by hyphens.

    Names, salts and paths use the same rule, so that they collide where their symbols say so. "red+tenant" gives the
    name of "red", a hyphen, and the name of "tenant".
    """
    return "-".join(f"{part}-{nonce}" for part in symbol.split(PART_SEPARATOR))


def text_of(tokens: tuple[int, ...]) -> str:
    """Return the text of a message with these tokens, which are printable bytes; a tokenizer may give other tokens."""
    return bytes(tokens).decode("ascii")


def new_prompt_length(prompt: Prompt) -> int:
    """Return the number of tokens of the prompt's own segments, including the nonce unless it continues a request."""
    return sum(s.length for s in prompt.segments) + (NONCE_TOKENS if prompt.continues is None else 0)
