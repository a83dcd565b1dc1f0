"""The run's events, appended to events.ndjson as they happen.

An event that cannot be written is kept in memory, and nothing is written after it: the run has to end, and its verdicts
are not lost. `failed` is the one place that learns of a full disk.

Every report is a view of this file, so an interrupted run has lost nothing up to that moment. Each line is appended
with one write, so that parallel workers can share a file. No secret is written: see `adapters/common/redact.py`.
"""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from coldproof.adapters.common.redact import redacted_json

CONFIRMING = "confirming"  # the stage of a phase that replays a counterexample; other phases have no stage


class EventLog:
    """Appends events to a file and passes them on to subscribers (the terminal)."""

    def __init__(self, path: Path, layer: str = "") -> None:
        """Every event names the layer, if there is one. Raise OSError if the file cannot be appended to."""
        self.path = path
        self.failure: OSError | None = None
        self.unwritten: list[bytes] = []  # the events that could not be written
        self.on_failure: Callable[[], object] = lambda: None
        self._layer = {"layer": layer} if layer else {}
        self._process, self._numbers = secrets.token_hex(4), itertools.count()
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o644)
        self._listeners: list[Callable[[str, dict[str, object]], None]] = []

    def subscribe(self, listener: Callable[[str, dict[str, object]], None]) -> None:
        """Call `listener(kind, fields)` with every later event of this process."""
        self._listeners.append(listener)

    def emit(self, kind: str, **fields: object) -> None:
        """Write one event. Values are plain data or msgspec structs.

        `process` and `number` show a reader whether a line is missing: the numbers of a process have no gap.
        """
        said = redacted_json(msgspec.json.encode({**self._layer, **fields}))  # if this fails, no number is missing
        stamp = {"event": kind, "at": round(time.time(), 3), "process": self._process, "number": next(self._numbers)}
        line = msgspec.json.encode(stamp)[:-1] + (b"," + said[1:] if len(said) > len(b"{}") else b"}") + b"\n"
        try:
            self._append(line)
        except OSError as problem:
            self.unwritten.append(line)
            self.failed(problem)
        for listener in self._listeners:
            listener(kind, fields)

    def _append(self, line: bytes) -> None:
        if self.failure is not None:
            raise self.failure
        while line:  # on a full disk a write may be incomplete; then the next one raises
            line = line[os.write(self._file, line) :]

    def failed(self, problem: OSError) -> None:
        """Record that a file of the run cannot be written, and end the run. Only the first problem counts."""
        if self.failure is None:
            self.failure = problem
            self.on_failure()

    def in_place(self) -> bool:
        """Return whether the path still leads to the file that this process writes."""
        try:
            return os.path.samestat(os.fstat(self._file), os.stat(self.path))
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)
