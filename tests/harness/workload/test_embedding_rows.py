"""Prompts with embedding rows have what the model sees, what else is sent, and near-collisions."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from coldproof.adapters.common.row_values import row_values
from coldproof.adapters.protocol.embedding_rows import NO_ROW, ZERO_ROW, has_rows, is_row, row_id
from coldproof.harness.history.prompts import hidden_of, tokens_of
from coldproof.harness.workload.steps import Burst, Prompt, Request, Rows, Segment, Workload, first_part
from coldproof.harness.workload.tokens import NONCE_TOKENS, first_tokens, hidden_tokens, nonce_tokens, segment_tokens
from coldproof.harness.workload.validity import is_valid

TOKENS = Segment("s", 10)
MIXED = Segment("s", 10, rows=Rows(((4, 7),)))


def seen(segment: Segment) -> tuple[int, ...]:
    return segment_tokens("n", segment)


def with_rows(rows: Rows, **edits: int) -> Segment:
    return msgspec.structs.replace(MIXED, rows=rows, **edits)


def different(left: Segment, right: Segment) -> list[int]:
    return [i for i, pair in enumerate(zip(seen(left), seen(right), strict=True)) if pair[0] != pair[1]]


def test_a_span_replaces_tokens_by_rows() -> None:
    """Outside of the span the tokens are those of the segment without rows, and all hidden values are carried."""
    found, hidden = seen(MIXED), hidden_tokens("n", MIXED)
    assert [is_row(one) for one in found] == [4 <= place < 7 for place in range(10)]
    assert (*found[:4], *hidden[4:7], *found[7:]) == seen(TOKENS)
    assert all(is_row(one) for one in (*hidden[:4], *hidden[7:]))


def test_another_mask_changes_only_what_the_model_sees() -> None:
    """The tables of token ids and rows stay the same, so only a key with the mask separates these prompts."""
    moved = with_rows(Rows(((5, 8),)))
    assert different(MIXED, moved) == [4, 7]
    for one, other in zip(
        zip(seen(MIXED), hidden_tokens("n", MIXED), strict=True),
        zip(seen(moved), hidden_tokens("n", moved), strict=True),
        strict=True,
    ):
        assert set(one) == set(other)


@pytest.mark.parametrize(
    ("edit", "places"),
    [
        ({"changed": 5}, [5]),
        ({"changed": 2}, [2]),
        ({"swapped": 5}, [5, 6]),
        ({"swapped": 3}, [3, 4]),
    ],
)
def test_edits_change_what_is_seen(edit: dict[str, int], places: list[int]) -> None:
    """The edits are of rows, of tokens, and of a token beside a row."""
    assert different(MIXED, msgspec.structs.replace(MIXED, **edit)) == places


def test_a_nudged_row_differs_in_one_value() -> None:
    """Only one value differs, at every width."""
    nudged = with_rows(Rows(((4, 7),), nudged=6))
    assert different(MIXED, nudged) == [6]
    for width in (1, 8, 64):
        values = row_values((seen(MIXED)[6], seen(nudged)[6]), width)
        assert int((values[0] != values[1]).sum()) == 1


def test_rows_can_be_equal_and_token_ids_zero() -> None:
    """This is for keys that ignore differences between positions, or between a placeholder and a token."""
    equal = seen(with_rows(Rows(((4, 7),), equal=True)))
    assert len(set(equal[4:7])) == 1
    blank = with_rows(Rows(((4, 7),), blank=True))
    assert set(seen(blank)[:4]) == {0}
    assert set(hidden_tokens("n", blank)[4:7]) == {0}
    assert seen(blank)[4:7] == seen(MIXED)[4:7]


def test_nothing_may_be_under_rows_and_tokens() -> None:
    """The model sees the same. With token ids 0 the rows are zeros, except for an edited one."""
    alone = with_rows(Rows(((4, 7),), alone=True))
    assert seen(alone) == seen(MIXED)
    assert set(hidden_tokens("n", alone)) == {NO_ROW}
    zeros = with_rows(Rows(((4, 7),), blank=True, alone=True))
    assert seen(zeros) == (0,) * 4 + (ZERO_ROW,) * 3 + (0,) * 3
    assert not row_values((ZERO_ROW,), 8).any()
    changed = msgspec.structs.replace(zeros, changed=5)
    assert different(zeros, changed) == [5]


def test_a_prompt_of_rows_alone_has_a_nonce_of_rows() -> None:
    """These rows depend on the nonce, as its tokens do."""
    whole = Segment("s", 3, rows=Rows(((0, 3),)))
    assert all(map(is_row, first_tokens("n", (whole,))))
    assert set(first_tokens("n", (whole,))).isdisjoint(first_tokens("m", (whole,)))
    assert first_tokens("n", (MIXED,)) == first_tokens("n", (TOKENS,)) == nonce_tokens("n")
    assert all(map(is_row, tokens_of(Request(prompt=Prompt((whole,))), "n", {})))


def test_only_prompts_with_rows_carry_anything_hidden() -> None:
    """Segments of tokens beside rows have no hidden rows, and neither has the nonce."""
    plain, mixed = Request(prompt=Prompt((TOKENS,))), Request(prompt=Prompt((MIXED, TOKENS)))
    assert hidden_of(plain, "n", {}) == ()
    hidden = hidden_of(mixed, "n", {})
    assert len(hidden) == len(tokens_of(mixed, "n", {})) == NONCE_TOKENS + 20
    assert {*hidden[:NONCE_TOKENS], *hidden[-10:]} == {NO_ROW}
    assert not has_rows(tokens_of(plain, "n", {}))


@pytest.mark.parametrize("width", [4, 64])
def test_values_are_exact_in_eight_bits_and_differ_between_rows(width: int) -> None:
    """The rows of tokens are zeros."""
    values = row_values((row_id("one"), 40, row_id("two")), width)
    assert values.shape == (3, width)
    assert not values[1].any()
    assert (values[0] != values[2]).any()
    assert np.array_equal(values * 64, np.round(values * 64))
    assert np.abs(values).max() <= 2


@pytest.mark.parametrize(
    ("rows", "valid"),
    [
        (Rows(((0, 10),)), True),
        (Rows(((1, 3), (3, 10)), nudged=4), True),
        (Rows(((1, 3),), nudged=4), False),
        (Rows(((3, 3),)), False),
        (Rows(((1, 4), (3, 6))), False),
        (Rows(((4, 11),)), False),
        (Rows(((-1, 4),)), False),
    ],
)
def test_spans_are_in_order_and_inside(rows: Rows, valid: bool) -> None:
    """The edited row must be a row."""
    workload = Workload((Burst(requests=(Request(prompt=Prompt((with_rows(rows),))),)),))
    assert is_valid(workload) is valid


def test_a_shorter_segment_keeps_the_rows_that_fit() -> None:
    """It is a prefix of the whole segment."""
    assert first_part(MIXED, 5).rows == Rows(((4, 5),))
    assert seen(first_part(MIXED, 5)) == seen(MIXED)[:5]
    assert first_part(MIXED, 4) == Segment("s", 4)
    assert first_part(TOKENS, 4) == Segment("s", 4)


def test_a_segment_is_written_with_its_rows() -> None:
    """They survive JSON; a segment of tokens has none there."""
    assert msgspec.json.encode(TOKENS) == b'{"name":"s","length":10}'
    assert msgspec.json.decode(msgspec.json.encode(MIXED), type=Segment) == MIXED
