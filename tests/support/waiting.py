"""Waits for events that must happen, without a time limit, because a busy machine is slow. The last limit is
pytest's.
"""

from __future__ import annotations

import time
from collections.abc import Callable

LOOK_SECONDS = 0.01


def until(condition: Callable[[], object]) -> None:
    """Return as soon as the condition holds."""
    while not condition():
        time.sleep(LOOK_SECONDS)
