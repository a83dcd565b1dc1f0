"""Fixtures for the tests of faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.fault_workloads import FaultyEngines, faulty_engines


@pytest.fixture(scope="module")
def engines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[FaultyEngines]:
    """Yield an engine for each cell."""
    with faulty_engines(tmp_path_factory.mktemp("rare")) as made:
        yield made
