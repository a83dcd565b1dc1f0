"""A plugin that interrupts a run, as Ctrl-C does, in a proof: when it begins, or at the step that INTERRUPTED names."""

from __future__ import annotations

import os
from typing import Any

from coldproof.harness.session.system_under_test import SystemUnderTest


def interrupted(*_: Any) -> Any:
    """Raise KeyboardInterrupt."""
    raise KeyboardInterrupt


setattr(SystemUnderTest, os.environ.get("INTERRUPTED", "confirm"), interrupted)
