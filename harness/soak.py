"""A soak: one requirement for hours, with memory and open files of harness and engines watched.

What is drawn is drawn in rounds, each from a seed of its own: hypothesis remembers everything that it drew in one go,
which in hours would itself be the growth that is looked for.
"""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable, Iterable
from typing import Any

import hypothesis
import msgspec
import psutil

from adapters.process import EngineProcess
from harness.events import EventLog

LOOKS = 240  # over the whole of a soak
SHORTEST, LONGEST = 1.0, 60.0  # seconds between two looks
HARNESS = "harness"


class Usage(msgspec.Struct, frozen=True):
    """What some process and its children hold."""

    process: str
    memory: int  # resident bytes
    files: int  # open file descriptors, sockets and pipes among them


def in_rounds(test: Callable[..., None], seed: str, is_over: Callable[[], bool]) -> Callable[..., None]:
    """The test again and again. It ends by its budget, or by a counterexample: whatever the test function raises."""

    def rounds(**arguments: Any) -> None:
        for number in itertools.count():
            if is_over():
                return
            hypothesis.seed(f"{seed}, round {number}")(test)(**arguments)

    return rounds


class Watch:
    """Looks at this process and at the engines that it started, from a thread of its own, until it is stopped."""

    def __init__(self, log: EventLog, processes: Callable[[], Iterable[EngineProcess]], seconds: float) -> None:
        """`processes`: those that were started so far; `seconds`: how long the soak is going to last."""
        self.log, self.processes = log, processes
        self.every = min(LONGEST, max(SHORTEST, seconds / LOOKS))
        self.ended = threading.Event()
        self.thread = threading.Thread(target=self.look_on, name="watch", daemon=True)

    def start(self) -> None:
        """Begin to look."""
        self.thread.start()

    def stop(self) -> None:
        """Look no more. Safe to call twice."""
        self.ended.set()
        if self.thread.is_alive():
            self.thread.join()

    def look_on(self) -> None:
        """A look, and a pause, until the end."""
        while not self.ended.wait(self.every):
            self.log.emit("usage", usages=self.look())

    def look(self) -> list[Usage]:
        """What each holds now. An engine in this process is part of the harness; one that has ended holds nothing."""
        found = [held(HARNESS, [psutil.Process()])]
        found += [held(process.log.stem, process.processes()) for process in self.processes() if process.running()]
        return [usage for usage in found if usage is not None]


def held(name: str, processes: list[psutil.Process]) -> Usage | None:
    """What processes hold together; None where there is none any more."""
    memory = files = 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            memory += process.memory_info().rss
            files += process.num_fds()
    return Usage(name, memory, files) if memory else None
