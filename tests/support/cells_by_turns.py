"""A plugin that runs each test in all cells before the next test, as workers of xdist may that share the tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> Iterator[None]:
    """Sort the tests by name, when Coldproof has sorted them by cell."""
    yield
    items.sort(key=lambda item: item.nodeid.partition("[")[0])
