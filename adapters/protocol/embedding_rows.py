"""Ids of embedding rows: what a prompt has where the model gets a row of embeddings instead of a token.

The ids of a prompt name what the model sees at each position: a token, or a row. So two prompts share a prefix exactly
as far as their ids are equal, and requests stay plain data: the values of a row follow from its id.
"""

from __future__ import annotations

from collections.abc import Sequence

FIRST_ROW = 1 << 44  # no vocabulary is that large; ids stay below 2**53, so that every reader of JSON keeps them exact
SEEDS = 1 << 36
VARIANTS = 1 << 8
NO_ROW = 0  # in `hidden`, under a token: a row of zeros


def row_id(seed: int, variant: int = 0) -> int:
    """Return the id of a row. The rows of two seeds differ in most values.

    `variant`: 0, or the number of the value, counted from 1, in which the row differs from the row of variant 0.
    """
    return FIRST_ROW + seed % SEEDS * VARIANTS + variant


def is_row(number: int) -> bool:
    """Return whether an id of a prompt is that of a row."""
    return number >= FIRST_ROW


def has_rows(prompt: Sequence[int]) -> bool:
    """Return whether a prompt contains rows."""
    return max(prompt, default=0) >= FIRST_ROW


def seed_and_variant(row: int) -> tuple[int, int]:
    """Return what `row_id` made the id of."""
    return divmod(row - FIRST_ROW, VARIANTS)
