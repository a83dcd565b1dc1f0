"""Which parameters of a test run on each push: a few samples; the others run at night."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def with_samples(values: Iterable[Any], *samples: Any) -> list[Any]:
    """Return the values as parameters. All but the samples are nightly. Raises ValueError for a sample that is none."""
    all_values = list(values)
    if missing := [one for one in samples if one not in all_values]:
        raise ValueError(f"samples that are no values: {missing}")
    return [one if one in samples else pytest.param(one, marks=pytest.mark.nightly) for one in all_values]
