"""The JSON of files out is the value that was written, and its lines are short enough to be read."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from coldproof.harness.schema.layout import WIDTH, indented

SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text()
VALUES = st.recursive(
    SCALARS, lambda part: st.lists(part, max_size=60) | st.dictionaries(st.text(), part), max_leaves=80
)


@given(VALUES)
def test_the_text_is_the_value(value: Any) -> None:
    """Reading the text gives the value, with its keys in their order."""
    read = json.loads(indented(value))
    assert read == value
    assert json.dumps(read) == json.dumps(value)


@given(st.lists(st.integers(-(10**6), 10**6), max_size=300))
def test_lines_are_full_and_no_longer_than_their_width(tokens: list[int]) -> None:
    """A list of tokens takes about as many lines as its characters need."""
    text = indented({"answer": tokens, "prompt": [tokens, tokens]})
    lines = text.splitlines()
    assert max(map(len, lines)) <= WIDTH
    assert len(lines) <= 2 * len(text) / WIDTH + 12


def test_short_values_share_a_line_and_containers_have_their_own() -> None:
    """The members of a long object are read in their order."""
    value = {"cell": "default", "tokens": list(range(40)), "cached": 32, "note": "x" * 20}
    opening, cell, tokens, *rows, closing, others, last = indented(value).splitlines()
    assert (opening, cell, tokens) == ("{", '  "cell": "default",', '  "tokens": [')
    assert (closing, others, last) == ("  ],", '  "cached": 32, "note": "xxxxxxxxxxxxxxxxxxxx"', "}")
    assert [row[:6] for row in rows] == ["    0,", "    31"]
