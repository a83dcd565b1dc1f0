"""Run an engine so that it cannot outlive the test run: `python guard.py COMMAND...`.

Started by `adapters.process` with a pipe as standard input. When that pipe closes (the test run ended, was killed, or
asked for a stop), or when the engine's main process ends, the whole process group is ended: SIGTERM first, SIGKILL
after a grace time. A parent that was killed with SIGKILL cannot clean up; a closed pipe needs no parent.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time

GRACE_SECONDS = 8.0


def main(command: list[str]) -> int:
    """Start the command in its own session, wait for its end or ours, and leave nothing behind."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the test run, which then closes the pipe
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda received, _: told.append(received))
    engine = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    while engine.poll() is None and not told:
        readable, _, _ = select.select([sys.stdin], [], [], 0.2)
        if readable and not os.read(sys.stdin.fileno(), 1):
            break
    code = engine.poll()
    end_group(engine)
    return 0 if code is None else code if code >= 0 else 128 - code


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
