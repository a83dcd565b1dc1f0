"""The scheduler of the platform in stand_in_platform.py, which vLLM imports later than the platform."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from vllm.v1.core.sched.scheduler import Scheduler


class StandInScheduler(Scheduler):
    """A scheduler that records that it was used."""

    def schedule(self, *args: Any, **named: Any) -> Any:
        """Record the use, and schedule a step."""
        Path(os.environ["STAND_IN_SCHEDULED"]).touch()
        return super().schedule(*args, **named)
