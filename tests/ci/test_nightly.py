"""Each push runs samples of a test, and the nightly run all of its parameters."""

from __future__ import annotations

import pytest
from support.nightly import with_samples


def test_all_but_the_samples_are_nightly() -> None:
    """The order is kept, and a tuple gives several arguments."""
    first, second, third = with_samples(["a", "b", ("c", 1)], "b")
    assert second == "b"
    assert [(one.values, [mark.name for mark in one.marks]) for one in (first, third)] == [
        (("a",), ["nightly"]),
        (("c", 1), ["nightly"]),
    ]


def test_a_sample_that_is_none_of_the_values_is_refused() -> None:
    """Otherwise a push would test none of the values after one was renamed."""
    with pytest.raises(ValueError, match="samples that are no values: \\['z'\\]"):
        with_samples(["a"], "z")
