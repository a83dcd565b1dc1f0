"""Engine processes: start guarded, log to a file, stop whole.

Whatever happens to the test run, no engine process stays behind (see `guard.py`).
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import psutil

GUARD = Path(__file__).with_name("guard.py")
TAIL_LINES = 40
STOP_SECONDS = 20.0


def free_port() -> int:
    """A port on 127.0.0.1 that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_taken(port: int) -> bool:
    """Whether something already listens there."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


class EngineProcess:
    """One guarded engine process tree with its log file."""

    def __init__(self, command: list[str], environment: Mapping[str, str], log: Path) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._sink: IO[bytes] = log.open("wb")
        self._guard = subprocess.Popen(
            [sys.executable, str(GUARD), *command],
            stdin=subprocess.PIPE,
            stdout=self._sink,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        self._known: list[psutil.Process] = []
        self._ended_at: int | None = None

    def running(self) -> bool:
        """Whether the engine's main process still runs."""
        return self._guard.poll() is None

    def remember(self) -> None:
        """Note the engine's processes, so that they can be ended even if somebody kills the guard."""
        self._known = self.processes() or self._known

    def exit_code(self) -> int | None:
        """The engine's exit code once it ended."""
        return self._guard.poll()

    def processes(self) -> list[psutil.Process]:
        """Every process of the engine, guard excluded."""
        try:
            return psutil.Process(self._guard.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def stop(self) -> None:
        """Close the pipe and wait until the guard has ended the group. Safe to call twice."""
        if self._ended_at is None:
            with contextlib.suppress(OSError):
                self._ended_at = self.log.stat().st_size
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()
        self.remember()
        try:
            self._guard.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        for process in self._known:
            with contextlib.suppress(psutil.NoSuchProcess):  # is_running() knows a reused pid from the old process
                if process.is_running():
                    process.kill()
        self._sink.close()

    def tail(self) -> str:
        """The last lines of the log, up to where this process was told to end: what an engine says of its own shutdown
        would push out of sight why it was ended."""
        try:
            text = self.log.read_bytes()[: self._ended_at].decode(errors="replace")
        except OSError as problem:
            return f"(log unreadable: {problem})"
        return "\n".join(text.splitlines()[-TAIL_LINES:])
