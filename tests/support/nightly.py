"""Chooses the parameters of a test that run on each push: a few samples. The others run at night."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def with_samples(values: Iterable[Any], *samples: Any) -> list[Any]:
    """Return the values as parameters, all but the samples nightly. Raises ValueError for a sample that is not a
    value.
    """
    all_values = list(values)
    if missing := [one for one in samples if one not in all_values]:
        raise ValueError(f"samples that are no values: {missing}")
    return [one if one in samples else parameter(one) for one in all_values]


def parameter(value: Any) -> Any:
    """Return a value, or a tuple of values for several names, as a parameter that is nightly."""
    return pytest.param(*(value if isinstance(value, tuple) else (value,)), marks=pytest.mark.nightly)
