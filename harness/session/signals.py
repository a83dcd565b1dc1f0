"""Ends a run at SIGINT, SIGTERM or SIGHUP as at Ctrl-C: the engines stop, and the report is written once.

The first signal raises KeyboardInterrupt in the main thread. Signals that follow cannot interrupt the report.
"""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from coldproof.reports.format.text import visible

ENDING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
REPEAT_SECONDS = 1.5  # interval at which an interrupt is raised again: one in a destructor or a wait is lost
JOIN_SECONDS = 0.5


class EndingSignals:
    """The signal handlers of one run. `release` runs once in a thread, and ends what the main thread waits for."""

    def __init__(self, release: Callable[[], None]) -> None:
        self.release = release
        self.received: signal.Signals | None = None
        self.reason = ""  # shown in place of the signal's name
        self._finishing = threading.Event()
        self._raised_at = 0.0
        self._before: dict[signal.Signals, Any] = {}
        self._terminals: set[int] = set()

    def install(self) -> None:
        """Handle the signals from now on, except those that the process was started to ignore (nohup)."""
        if threading.current_thread() is not threading.main_thread():
            return
        self._terminals = {os.fstat(fd).st_rdev for fd in open_files() if os.isatty(fd)}
        for number in ENDING:
            if signal.getsignal(number) is not signal.SIG_IGN:
                self._before[number] = signal.signal(number, self.handle)

    def restore(self) -> None:
        """Restore the former handlers."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before.clear()

    def interrupt(self, reason: str) -> None:
        """End the run as SIGTERM does, from any thread. Without handlers, the run goes on to its end."""
        self.reason = reason
        if signal.SIGTERM in self._before and not self._finishing.is_set():
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGTERM)

    def handle(self, number: int, _: FrameType | None) -> None:
        """Interrupt the main thread, unless the run is ending already."""
        if number == signal.SIGHUP:
            leave_terminals(self._terminals)
        if self._finishing.is_set():
            return
        if self.received is None:
            self.received = signal.Signals(number)
            threading.Thread(target=self._insist, name="ending", daemon=True).start()
        elif time.monotonic() - self._raised_at < REPEAT_SECONDS:
            return
        self._raised_at = time.monotonic()
        raise KeyboardInterrupt(self.reason or self.received.name)

    def _insist(self) -> None:
        """End what the main thread may be waiting for, and interrupt it again until it writes the report."""
        with contextlib.suppress(OSError):
            self.release()
        main = threading.main_thread().ident
        while not self._finishing.wait(REPEAT_SECONDS) and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)

    def finishing(self) -> None:
        """Ignore signals from now on: the report is being written."""
        self._finishing.set()

    def leave(self, exit_code: int) -> None:
        """After an interrupt, end the process with the exit code of its report.

        Threads may still run (they wait for an attached server), and something may have failed after the report was
        written (a closed terminal): Python would wait for the threads, and end with 1 for the failure.
        """
        if self.received is None:
            return
        failure = sys.exc_info()[1]
        deadline = time.monotonic() + JOIN_SECONDS
        waiting = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
        for thread in waiting:
            thread.join(max(0.0, deadline - time.monotonic()))
        if failure is not None or any(thread.is_alive() for thread in waiting):
            with contextlib.suppress(OSError, ValueError):
                if failure is not None:
                    sys.stderr.write(
                        f"coldproof: after the report, {visible(f'{type(failure).__name__}: {failure}')}\n"
                    )
            for stream in (sys.stdout, sys.stderr):
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
            os._exit(exit_code)


def open_files() -> list[int]:
    """Return the file descriptors of this process. Other threads, and the reading itself, may have closed some."""
    return [int(entry.name) for entry in Path("/dev/fd").iterdir()]


def leave_terminals(devices: set[int]) -> None:
    """Redirect output for these terminals to the null device: they are closed, and a write would fail."""
    with contextlib.suppress(OSError), Path(os.devnull).open("r+b", buffering=0) as null:
        for fd in open_files():
            with contextlib.suppress(OSError):  # one that is closed must not leave the others as they are
                mode = os.fstat(fd)
                if stat.S_ISCHR(mode.st_mode) and mode.st_rdev in devices:
                    os.dup2(null.fileno(), fd)
