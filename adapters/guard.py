"""Run an engine so that it cannot outlive the test run: `python guard.py COMMAND...`.

Started by `adapters.process` with a pipe as standard input. When that pipe closes (the test run ended, was killed, or
asked for a stop), or when the engine's main process ends, the whole process group is ended: SIGTERM first, SIGKILL
after a grace time. A parent that was killed with SIGKILL cannot clean up; a closed pipe needs no parent. Somebody may
kill this process with SIGKILL too (a worker of Ray's does so with its children when its node goes): then Linux ends the
main process, whose own children see that their parent went.
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

GRACE_SECONDS = 8.0
PR_SET_PDEATHSIG = 1  # of linux/prctl.h


def main(command: list[str]) -> int:
    """Start the command in its own session, wait for its end or ours, and leave nothing behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test run, which then closes the pipe
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: told.append(received))
    engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=tied())
    while engine.poll() is None and not told:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    code = engine.poll()
    end_group(engine)
    return 0 if code is None else code if code >= 0 else 128 - code


def tied() -> Callable[[], None] | None:
    """What a new process does first so that our death is its own; None where the system knows no such thing."""
    if sys.platform != "linux":
        return None
    libc, us = ctypes.CDLL(None), os.getpid()

    def tie() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != us:  # it came too late
            os.kill(os.getpid(), signal.SIGKILL)

    return tie


def end_group(engine: subprocess.Popen[bytes]) -> None:
    """SIGTERM to the group, SIGKILL to what is left of it when the grace time is over."""
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
    """Signal a process group; whether it still had members."""
    try:
        os.killpg(group, number)
    except ProcessLookupError:
        return False
    return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
