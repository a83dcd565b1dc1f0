"""Forks processes that need not import an engine: `python -m coldproof.adapters.common.fork_server SOCKET PRELOAD...`.

Importing vLLM takes seven seconds, and each of a server's three processes does it. This process imports every PRELOAD
once: a module, or `module:function`, which is called. They must start no thread. Each connection to SOCKET then forks
one process, which ends the connection with its exit code. `forked.py` is the client.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pkgutil
import select
import shutil
import signal
import socket
import socketserver
import struct
import sys
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.common import guard

LENGTH = struct.Struct("!Q")  # precedes a job
CODE = struct.Struct("!i")  # the process id at the beginning of the answer, the exit code at its end
POLL_SECONDS = 0.1
NO_LIMIT = 100_000  # processes at the same time


class Job(msgspec.Struct, frozen=True):
    """What a forked process does: call `function` (`module:name`) with `arguments`; it returns the exit code.

    `guarded`: in a process group of its own, below a guard (guard.py) that ends it when standard input is closed.
    """

    function: str
    arguments: tuple[str, ...]
    environment: dict[str, str]
    folder: str
    guarded: bool


class Handler(socketserver.BaseRequestHandler):
    """One forked process."""

    def handle(self) -> None:
        """Receive the job with its standard input and output, do it, and send the exit code."""
        assert isinstance(self.server, ForkServer)
        self.server.socket.close()  # otherwise it would accept connections after the end of the fork server
        head, files, _, _ = socket.recv_fds(self.request, LENGTH.size, 2)
        with self.request.makefile("rb") as rest:
            job = msgspec.json.decode(rest.read(LENGTH.unpack(head)[0]), type=Job)
        redirect(*files)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        os.environ.clear()
        os.environ.update(job.environment)
        os.chdir(job.folder)
        path = job.environment.get("PYTHONPATH", "").split(os.pathsep)
        sys.path[:0] = [entry for entry in path if entry and entry not in sys.path]
        if job.guarded:
            os.setsid()
        self.request.sendall(CODE.pack(os.getpid()))
        self.request.sendall(CODE.pack(self.guarded(job) if job.guarded else run(job)))

    def guarded(self, job: Job) -> int:
        """Run a job in a child of this process, which becomes its guard."""

        def child() -> int:
            self.request.close()
            return run(job)

        return guard.watch(lambda: ForkedChild(child))


def run(job: Job) -> int:
    """Do a job in this process and return its exit code. An exception's trace is written to standard error."""
    try:
        return int(pkgutil.resolve_name(job.function)(list(job.arguments)) or 0)
    except SystemExit as end:
        if not isinstance(end.code, int | None):
            sys.stderr.write(f"{end.code}\n")
        return end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:  # noqa: BLE001 - as the interpreter does at the end of a program
        traceback.print_exc()
        return 1
    finally:
        for stream in (sys.stdout, sys.stderr):
            with contextlib.suppress(OSError, ValueError):
                stream.flush()


class ForkedChild:
    """A child of this process that calls `child` and ends with what it returns."""

    def __init__(self, child: Callable[[], int]) -> None:
        hook = guard.parent_death_hook()
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        code = 1
        try:
            os.setsid()
            for number in (signal.SIGTERM, signal.SIGHUP):
                signal.signal(number, signal.SIG_DFL)
            if hook is not None:
                hook()
            with open(os.devnull, "rb") as null:
                os.dup2(null.fileno(), 0)
            code = child()
        finally:
            os._exit(code)

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""
        return self.wait(os.WNOHANG)

    def wait(self, options: int = 0) -> int | None:
        """Wait for its end, and return the exit code."""
        if self.returncode is None and (ended := os.waitpid(self.pid, options))[0]:
            self.returncode = os.waitstatus_to_exitcode(ended[1])
        return self.returncode


class ForkServer(socketserver.ForkingMixIn, socketserver.UnixStreamServer):
    """Forks a process for each connection, until standard input is closed."""

    max_children = NO_LIMIT
    block_on_close = False

    def service_actions(self) -> None:
        """Collect the processes that have ended. Raises SystemExit when standard input is closed."""
        super().service_actions()
        if select.select([sys.stdin], [], [], 0)[0]:
            raise SystemExit

    def end_children(self) -> None:
        """Tell the processes that still run to end."""
        for child in self.active_children or ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGTERM)


def redirect(*files: int) -> None:
    """Make the first file standard input, and the second one standard output and standard error."""
    for source, targets in zip(files, ((0,), (1, 2)), strict=True):
        for target in targets:
            os.dup2(source, target)
        os.close(source)


def main(words: Sequence[str]) -> None:
    """Preload, and serve until standard input is closed or SIGTERM comes. Then remove the socket's folder."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the run, which then closes standard input
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    address, *preload = words
    for name in preload:
        try:
            found: Any = pkgutil.resolve_name(name)
            if callable(found):
                found()
        except BaseException:  # noqa: BLE001 - what cannot be imported fails in the process that needs it
            traceback.print_exc()
    gc.collect()
    gc.freeze()  # a collection in a fork would touch, and so copy, all imported objects
    server = ForkServer(f"{address}.new", Handler)
    Path(f"{address}.new").rename(address)  # tells the client that connections are accepted
    try:
        server.serve_forever(POLL_SECONDS)
    finally:
        server.end_children()
        shutil.rmtree(Path(address).parent, ignore_errors=True)


if __name__ == "__main__":
    main(sys.argv[1:])
