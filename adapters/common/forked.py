"""Starts processes in forks of one that has imported what they need: the client of fork_server.py."""

from __future__ import annotations

import atexit
import math
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import IO

import msgspec

from coldproof import IMPORT_ROOT
from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.fork_server import CODE, LENGTH, Job
from coldproof.adapters.common.scratch import ScratchFolder

VARIABLE = "COLDPROOF_FORK_SERVER"  # names the socket of a fork server that the parent process has started
PRELOAD_SECONDS = 900.0  # for imports that take ten seconds on an idle machine, and minutes beside other work
POLL_SECONDS = 0.02
STARTING = threading.Lock()  # engines start in several threads, and one fork server is enough
FOLDERS: list[ScratchFolder] = []  # of the fork servers; each is locked as long as this process lives
IMPORTING: set[subprocess.Popen[bytes]] = set()  # fork servers that are not ready yet
OWN: dict[tuple[str, ...], tuple[subprocess.Popen[bytes], Path]] = {}  # by their preloads: process and socket


def readable(connection: socket.socket) -> bool:
    """Return whether a connection has something to read, or was closed.

    Not with `select`, which fails in a process that has more than 1,024 files open.
    """
    ready = select.poll()
    ready.register(connection, select.POLLIN)
    return bool(ready.poll(0))


class ForkServerError(Exception):
    """No process can be forked here; it has to be started in the usual way."""


class ForkedProcess:
    """A process of the fork server, with the part of subprocess.Popen's interface that Coldproof uses."""

    def __init__(
        self,
        address: str,
        function: str,
        arguments: tuple[str, ...],
        *,
        environment: Mapping[str, str],
        output: IO[bytes],
        guarded: bool,
        folder: Path | None = None,
    ) -> None:
        """Call `function` (`module:name`) in a new process, in `folder` or this process's. Raises ForkServerError.

        `guarded`: end it when `stdin` is closed.
        """
        job = msgspec.json.encode(Job(function, arguments, dict(environment), str(folder or Path.cwd()), guarded))
        reading, writing = os.pipe()
        self.stdin: IO[bytes] = os.fdopen(writing, "wb", 0)
        self.returncode: int | None = None
        self._connection = socket.socket(socket.AF_UNIX)
        self._reading = threading.Lock()  # every thread with a request asks whether its engine still runs
        try:
            self._connection.connect(address)
            socket.send_fds(self._connection, [LENGTH.pack(len(job))], [reading, output.fileno()])
            self._connection.sendall(job)
            (self.pid,) = CODE.unpack(self._connection.recv(CODE.size, socket.MSG_WAITALL))
        except (OSError, ValueError) as problem:
            self._connection.close()
            self.stdin.close()
            raise ForkServerError(str(problem)) from problem
        finally:
            os.close(reading)

    def poll(self) -> int | None:
        """Return the exit code; None while the process runs."""
        with self._reading:
            if self.returncode is None and readable(self._connection):
                answer = self._connection.recv(CODE.size, socket.MSG_WAITALL)
                # It could not send its code if it was killed.
                self.returncode = CODE.unpack(answer)[0] if len(answer) == CODE.size else -signal.SIGKILL
                self._connection.close()
            return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait until the process has ended, and return its exit code. Raises subprocess.TimeoutExpired."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > deadline:
                raise subprocess.TimeoutExpired("a forked process", timeout or 0.0)
            time.sleep(POLL_SECONDS)
        return code

    def terminate(self) -> None:
        """Send SIGTERM."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def fork_server(*preload: str) -> str:
    """Return the socket of the fork server: the one of a parent process, or a new one that calls each `preload`.

    It ends with this process. Raises ForkServerError if it does not start.
    """
    inherited = inherited_server()
    if inherited:
        return inherited
    with STARTING:
        return own_fork_server(*preload)


def inherited_server() -> str:
    """Return the socket of the fork server that a parent process has started; "" without one."""
    address = os.environ.get(VARIABLE, "")
    return address if address and Path(address).exists() else ""


def import_ahead(*preload: str) -> None:
    """Begin to start the fork server that a later call needs, and do not wait. Raises OSError."""
    with STARTING:
        if not inherited_server():
            begun(*preload)


def own_fork_server(*preload: str) -> str:
    """Return the socket of this process's fork server for these preloads, when it has imported them."""
    server, address = begun(*preload)
    try:
        await_imports(server, address)
    except BaseException:
        del OWN[preload]  # the next call starts another one
        raise
    return str(address)


def begun(*preload: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Return the fork server of this process for these preloads, which may still import. It is started once."""
    if preload not in OWN:
        OWN[preload] = begin(*preload)
    return OWN[preload]


def begin(*preload: str) -> tuple[subprocess.Popen[bytes], Path]:
    """Start a fork server. Return its process and its socket, which is there as soon as it has called each `preload`.

    It ends with this process.
    """
    scratch = ScratchFolder()
    FOLDERS.append(scratch)
    address = scratch.path / "fork"
    command = [sys.executable, "-P", "-m", "coldproof.adapters.common.fork_server", str(address), *preload]
    path = os.pathsep.join(filter(None, [os.environ.get("PYTHONPATH"), IMPORT_ROOT]))
    with (scratch.path / "log").open("wb") as log:
        server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env={**current_environment(), "PYTHONPATH": path}
        )
    atexit.register(end, server, address)
    return server, address


def await_imports(server: subprocess.Popen[bytes], address: Path) -> None:
    """Wait until a fork server accepts connections. Raises ForkServerError."""
    deadline = time.monotonic() + PRELOAD_SECONDS
    IMPORTING.add(server)
    try:
        while not address.exists():
            if server.poll() is not None or time.monotonic() > deadline:
                late = f"importing the engine took more than {PRELOAD_SECONDS:g} s. " if server.poll() is None else ""
                raise ForkServerError(late + (address.parent / "log").read_text(errors="replace").strip())
            time.sleep(POLL_SECONDS)
    except BaseException:  # Ctrl-C, too: an import of an engine takes longer than a user waits
        server.kill()
        shutil.rmtree(address.parent, ignore_errors=True)
        raise
    finally:
        IMPORTING.discard(server)


def stop_imports() -> None:
    """Kill the fork servers that are not ready yet, so that no thread waits for their imports. They have no forks."""
    for server in list(IMPORTING):
        server.kill()


def end(server: subprocess.Popen[bytes], address: Path) -> None:
    """End a fork server, which removes its folder. One that still imports has no forks, and is killed."""
    if server.stdin is not None:
        server.stdin.close()
    if not address.exists():
        server.kill()
    server.wait()
