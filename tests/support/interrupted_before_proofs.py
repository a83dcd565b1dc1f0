"""A plugin that interrupts a run, as Ctrl-C does, when a test runs again: its proof has waited for the others."""

from __future__ import annotations

import pytest

SEEN: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Raise KeyboardInterrupt at the second time."""
    if item.nodeid in SEEN:
        raise KeyboardInterrupt
    SEEN.add(item.nodeid)
