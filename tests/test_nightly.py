"""Samples of a test run on each push, all of its parameters at night."""

from __future__ import annotations

import pytest
from support.nightly import with_samples


def test_all_but_the_samples_are_nightly() -> None:
    """In their order; a tuple is for several names."""
    first, second, third = with_samples(["a", "b", ("c", 1)], "b")
    assert second == "b"
    assert [(one.values, [mark.name for mark in one.marks]) for one in (first, third)] == [
        (("a",), ["nightly"]),
        (("c", 1), ["nightly"]),
    ]


def test_a_sample_that_is_none_of_the_values_is_refused() -> None:
    """After a value was renamed, a push would test nothing of it."""
    with pytest.raises(ValueError, match="samples that are no values: \\['z'\\]"):
        with_samples(["a"], "z")
