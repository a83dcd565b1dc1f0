"""Engine processes: start them under a guard, write their log to a file, stop the whole process tree.

No engine process stays behind, whatever happens to the test run (see `guard.py`).
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec
import psutil

from coldproof import IMPORT_ROOT
from coldproof.adapters.common.forked import ForkedProcess, ForkServerError, fork_server
from coldproof.adapters.common.redact import redact_file, redacted
from coldproof.adapters.protocol.own_code import OWN_CODE, own_failure

GUARD = Path(__file__).with_name("guard.py")
TAIL_LINES = 40
STOP_SECONDS = 20.0
# The last line of a traceback, as loggers of several processes write it.
FIRST_ERROR = re.compile(r"^.*\bERROR\b.*\] (?:[\w.]+\.)?\w+(?:Error|Exception): .*$", re.MULTILINE)


def free_port() -> int:
    """Return a port on 127.0.0.1 that is free at the moment of the call."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def port_is_taken(port: int) -> bool:
    """Return whether a process already listens on a port of 127.0.0.1."""
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def python_path(*first: Path) -> str:
    """Return the PYTHONPATH of an engine: `first`, then the user's own path, then Coldproof's packages."""
    inherited = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return os.pathsep.join(dict.fromkeys(filter(None, [*map(str, first), *inherited, IMPORT_ROOT])))


class Forking(msgspec.Struct, frozen=True):
    """How an engine starts in a fork: `preload` imports its modules, `run` gets the words of its command line.

    Both are `module:function`.
    """

    preload: str
    run: str


class EngineProcess:
    """One guarded engine process tree with its log file.

    `forking`: start it in a fork of a process that has imported the engine, if one can be had, because that is faster.
    """

    def __init__(
        self, command: list[str], environment: Mapping[str, str], log: Path, *, forking: Forking | None = None
    ) -> None:
        log.parent.mkdir(parents=True, exist_ok=True)
        self.log = log
        self._sink: IO[bytes] = log.open("wb", buffering=0)
        self._guard = self._forked(command, environment, forking) or subprocess.Popen(
            [sys.executable, "-P", str(GUARD), *command],  # -P keeps the guard's own folder off its import path
            stdin=subprocess.PIPE,
            stdout=self._sink,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            start_new_session=True,
        )
        self._known: list[psutil.Process] = []
        self._ended_at: int | None = None

    def _forked(
        self, command: list[str], environment: Mapping[str, str], forking: Forking | None
    ) -> ForkedProcess | None:
        if forking is None:
            return None
        try:
            server = fork_server(forking.preload)
            words = tuple(command[1:])  # without the interpreter
            return ForkedProcess(server, forking.run, words, environment=environment, output=self._sink, guarded=True)
        except ForkServerError as problem:
            self._sink.write(f"Coldproof: started without a fork: {problem}\n".encode())
            return None

    def running(self) -> bool:
        """Return whether the engine's main process still runs."""
        return self._guard.poll() is None

    def record_processes(self) -> None:
        """Record the engine's processes, so that `stop` can kill them even if the guard was killed."""
        self._known = self.processes() or self._known

    def exit_code(self) -> int | None:
        """Return the engine's exit code, or None while it runs."""
        return self._guard.poll()

    def processes(self) -> list[psutil.Process]:
        """Return every process of the engine, without the guard."""
        try:
            return psutil.Process(self._guard.pid).children(recursive=True)
        except psutil.NoSuchProcess:
            return []

    def request_stop(self) -> None:
        """Close the pipe, so that the guard ends the process group. Does not wait for the end."""
        if self._ended_at is None:
            with contextlib.suppress(OSError):
                self._ended_at = self.log.stat().st_size
        if self._guard.stdin is not None and not self._guard.stdin.closed:
            self._guard.stdin.close()

    def stop(self) -> None:
        """Close the pipe and wait until the guard has ended the group. Safe to call twice."""
        self.request_stop()
        self.record_processes()
        try:
            self._guard.wait(STOP_SECONDS)
        except subprocess.TimeoutExpired:
            self._guard.kill()
            self._guard.wait()
        for process in self._known:
            with contextlib.suppress(psutil.NoSuchProcess):  # is_running() is False for a reused pid
                if process.is_running():
                    process.kill()
        if not self._sink.closed:
            self._sink.close()
            with contextlib.suppress(OSError):  # the disk may be full, and the log may be gone
                redact_file(self.log)

    def tail(self) -> str:
        """Return the last lines of the log, up to the point where a stop was requested.

        The messages of the engine's shutdown would otherwise push the reason for the stop out of the tail.
        """
        return log_tail(self.log, self._ended_at)


def log_tail(log: Path, end: int | None = None) -> str:
    """Return the last lines of a log, or of its first `end` bytes, without secrets, behind its first error and our own.

    What follows an error in a server of several processes, and the engine's other messages, may push both out of the
    last lines.
    """
    try:
        text = log.read_bytes()[:end].decode(errors="replace")
    except OSError as problem:
        return f"(log unreadable: {problem})"
    where, error = own_failure(text), FIRST_ERROR.search(text)
    last = text.splitlines()[-TAIL_LINES:]
    first = [] if error is None or error[0] in last else [error[0]]
    shown = "\n".join([*([f"{OWN_CODE}: {where}"] if where else []), *first, *last])
    return redacted(shown)
