"""The run's events, appended to events.ndjson as they happen.

Everything that is reported is a view of this file, so a run that was interrupted has lost nothing up to that moment.
Lines are appended whole, so parallel workers may share one file.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path

import msgspec


class EventLog:
    """Appends events to a file and passes them on to subscribers (the terminal)."""

    def __init__(self, path: Path) -> None:
        """Raises OSError when the file cannot be appended to."""
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        self._listeners: list[Callable[[str, dict[str, object]], None]] = []

    def subscribe(self, listener: Callable[[str, dict[str, object]], None]) -> None:
        """Have `listener(kind, fields)` called with every event of this process."""
        self._listeners.append(listener)

    def emit(self, kind: str, **fields: object) -> None:
        """Write one event. Values are plain data or msgspec structs."""
        line = msgspec.json.encode({"event": kind, "at": round(time.time(), 3), **fields}) + b"\n"
        while line:  # a full disk may take part of it; then the next write raises
            line = line[os.write(self._file, line) :]
        for listener in self._listeners:
            listener(kind, fields)

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
