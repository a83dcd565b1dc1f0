"""Tokens of segments and nonces, and their text. The same nonce and name always give the same tokens."""

from __future__ import annotations

import hashlib
import random
import secrets
from collections.abc import Sequence

from coldproof.harness.workload.steps import Prompt, Segment

FIRST_TOKEN, LAST_TOKEN = 32, 126  # printable bytes: plain tokens in every byte-level or larger vocabulary
NONCES_APART = 64  # successive runs on one engine whose prompts start with different tokens; there are 95 tokens
NONCE_TOKENS = 4  # 95**4 values, so that two examples of a run do not collide
PART_SEPARATOR = "+"  # between the parts of a symbol that consists of several names


def segment_tokens(nonce: str, segment: Segment) -> tuple[int, ...]:
    """Return the tokens of a segment with a nonce. A shorter segment of the same name is a prefix.

    A changed token always differs; if two swapped tokens are equal, the segment is unchanged.
    """
    source = random.Random(f"{nonce}/{segment.name}")
    tokens = [source.randint(FIRST_TOKEN, LAST_TOKEN) for _ in range(segment.length)]
    if segment.changed is not None:
        span = LAST_TOKEN - FIRST_TOKEN + 1
        tokens[segment.changed] = FIRST_TOKEN + (tokens[segment.changed] - FIRST_TOKEN + 1) % span
    if segment.swapped is not None:
        first, then = segment.swapped, segment.swapped + 1
        tokens[first], tokens[then] = tokens[then], tokens[first]
    return tuple(tokens)


def nonce_tokens(nonce: str) -> tuple[int, ...]:
    """Return the first tokens of every prompt of a run, so that no example hits what another one cached."""
    digest = hashlib.sha256(nonce.encode()).digest()
    return tuple(FIRST_TOKEN + byte % (LAST_TOKEN - FIRST_TOKEN + 1) for byte in digest[:NONCE_TOKENS])


def new_nonce(earlier: Sequence[str]) -> str:
    """Return a nonce of six hex digits for an engine that has seen the `earlier` ones, the latest last.

    Its first token differs from those of the latest nonces. Some engines can hit a single token of an earlier run.
    Where the engine's key has no adapter, that token may be another adapter's (llama.cpp#26207): a fault, but not of
    this run.
    """
    taken = {nonce_tokens(nonce)[0] for nonce in earlier[-NONCES_APART:]}
    nonce = secrets.token_hex(3)
    while nonce_tokens(nonce)[0] in taken:
        nonce = secrets.token_hex(3)
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
