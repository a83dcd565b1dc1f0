"""A soak: one requirement for hours, while memory and open files of the harness and the engines are monitored.

Examples are drawn in rounds with one seed each (rounds.py).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable

import msgspec
import psutil

from coldproof.adapters.common.process import EngineProcess
from coldproof.harness.event_log import EventLog

SAMPLES = 240  # during the whole soak
MIN_INTERVAL, MAX_INTERVAL = 1.0, 60.0  # seconds between two samples
HARNESS = "harness"


class Usage(msgspec.Struct, frozen=True):
    """Memory and open files of a process and its children."""

    process: str
    memory: int  # resident bytes
    files: int  # open file descriptors, sockets and pipes among them


class ResourceMonitor:
    """Samples this process and its engines in a background thread, until it is stopped."""

    def __init__(self, log: EventLog, processes: Callable[[], Iterable[EngineProcess]], seconds: float) -> None:
        """`processes`: returns the engine processes started so far. `seconds`: duration of the soak."""
        self.log, self.processes = log, processes
        self.interval = min(MAX_INTERVAL, max(MIN_INTERVAL, seconds / SAMPLES))
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.poll, name="watch", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self.thread.start()

    def stop(self) -> None:
        """Stop the thread. Safe to call twice."""
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join()

    def poll(self) -> None:
        """Emit a sample after every interval, until stopped."""
        while not self.ended.wait(self.interval):
            self.log.emit("usage", usages=self.sample())

    def sample(self) -> list[Usage]:
        """Return the usage of each running process. An in-process engine counts as the harness."""
        found = [usage_of(HARNESS, [psutil.Process()])]
        found += [usage_of(process.log.stem, process.processes()) for process in self.processes() if process.running()]
        return [usage for usage in found if usage is not None]


def usage_of(name: str, processes: list[psutil.Process]) -> Usage | None:
    """Return the total usage of these processes; None if all have terminated."""
    memory = files = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_info().rss
            files += process.num_fds()
    return Usage(name, memory, files) if memory else None
