"""Whether an engine ends, and with which error. A server may answer "internal error" just before its process ends."""

from __future__ import annotations

import re
import time

from coldproof.adapters.protocol.engine import Engine

DEATH_SECONDS = 10.0  # from the answer "internal error" to the end of the process: its workers end first
POLL_SECONDS = 0.1
ERROR_LINE = re.compile(r"\b\w*(Error|Exception): ")  # the last line of a Python traceback


def ends_soon(engine: Engine) -> bool:
    """Return whether an engine that gave no answer has ended, or ends within DEATH_SECONDS."""
    until = time.monotonic() + DEATH_SECONDS
    while engine.alive() and time.monotonic() < until:
        time.sleep(POLL_SECONDS)
    return not engine.alive()


def last_error(log_tail: str) -> str:
    """Return the last error of the engine itself in a log; empty if there is none."""
    errors = [line for line in log_tail.splitlines() if ERROR_LINE.search(line) and "EngineDeadError" not in line]
    return errors[-1].strip() if errors else ""
