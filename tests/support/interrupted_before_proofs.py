"""A plugin that interrupts a run, as Ctrl-C does, when a test runs again: its proof has waited for the others.

With COLDPROOF_KILLED the process is killed instead.
"""

from __future__ import annotations

import os
import signal

import pytest

SEEN: set[str] = set()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """End the run at the second time."""
    if item.nodeid in SEEN:
        if os.environ.get("COLDPROOF_KILLED"):
            os.kill(os.getpid(), signal.SIGKILL)
        raise KeyboardInterrupt
    SEEN.add(item.nodeid)
