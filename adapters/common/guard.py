"""Run an engine so that it cannot outlive the test run: `python guard.py COMMAND...`.

`adapters/common/process.py` starts this script with a pipe as standard input. The pipe closes when the test run ends,
is killed or requests a stop. When the pipe closes or the engine's main process ends, the script terminates the whole
process group: SIGTERM first, SIGKILL after a grace time. A pipe is used because a parent that was killed with SIGKILL
cannot clean up. The guard itself can also be killed with SIGKILL; a Ray worker does that to its children when its node
fails. Linux then kills the engine's main process, and the main process's children see that their parent ended.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Protocol

GRACE_SECONDS = 8.0
PR_SET_PDEATHSIG = 1  # from linux/prctl.h


class Engine(Protocol):
    """The engine's main process: `poll` and `wait` as in subprocess.Popen."""

    pid: int

    def poll(self) -> int | None:
        """Return the exit code; None while it runs."""

    def wait(self) -> int | None:
        """Wait for its end."""


def main(command: list[str]) -> int:
    """Run a command under this guard. Return its exit code."""
    return watch(
        lambda: subprocess.Popen(
            command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=parent_death_hook()
        )
    )


def watch(start: Callable[[], Engine]) -> int:
    """Start an engine in its own session, wait until it ends or a stop is requested, and kill its process group.

    Return the engine's exit code: 128 plus the signal number if a signal ended it, 0 if this guard stopped it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test run, which then closes the pipe
    received: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda signum, _: received.append(signum))
    engine = start()
    while engine.poll() is None and not received:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    code = engine.poll()
    end_group(engine)
    return 0 if code is None else code if code >= 0 else 128 - code


def parent_death_hook() -> Callable[[], None] | None:
    """Return a function for the new process that has Linux kill it when this process dies; None on other systems."""
    if sys.platform != "linux":
        return None
    libc, guard = ctypes.CDLL(None), os.getpid()

    def kill_with_parent() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # the guard died before the call of prctl
            os.kill(os.getpid(), signal.SIGKILL)

    return kill_with_parent


def end_group(engine: Engine) -> None:
    """Send SIGTERM to the engine's process group, and SIGKILL to the processes left after the grace time."""
    if not signal_group(engine.pid, signal.SIGTERM):
        return
    deadline = time.monotonic() + GRACE_SECONDS
    while time.monotonic() < deadline:
        engine.poll()
        if not signal_group(engine.pid, 0):
            return
        time.sleep(0.05)
    signal_group(engine.pid, signal.SIGKILL)
    engine.wait()


def signal_group(group: int, number: int) -> bool:
    """Send a signal to a process group. Return whether the group still had members."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
