"""Runs `coldproof run` as a process on a node. This is the Ray task.

Ray sends this module to the node by value. It imports only the standard library, because Coldproof need not be
installed in Ray's own Python there. When the task ends, the process and its engines end too, even after SIGKILL: the
guard process sees that its pipe is closed.
"""

from __future__ import annotations

import contextlib
import io
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVENTS = "events.ndjson"
GUARD = ("coldproof", "adapters", "common", "guard.py")  # below the root
KNOWN_ISSUES = "known_issues.toml"
POLL_SECONDS = 0.3  # Ray cancels a task by an interrupt that ends no blocking wait
LOG_BYTES = 64 * 2**10  # kept from the end of pytest's output
NODE_ID = 12  # characters of Ray's id of a node. Host names must not be in a report


@dataclass(frozen=True, kw_only=True)
class Ended:
    """The process ended. `files`: its report folder as tar.gz; `log`: the end of its output; `lost`: lost attempts."""

    code: int
    files: bytes
    log: str
    seconds: float
    node: str = ""
    lost: int = 0


def run_task(words: list[str], waivers: str | None, folder: str, python: str) -> dict[str, Any]:
    """Run the suites in the files that Ray brought. Return the fields of Ended, because Ray's Python lacks our classes.

    `words`: options of the run; `waivers`: the text of the known issues; `folder`: the report folder as the driver
    calls it, so that the commands in the report are right there; `python`: "" for Ray's own.
    """
    import ray

    ended = run_here(Path.cwd(), words, waivers, folder, python or sys.executable)
    lost = ray._private.worker.global_worker.core_worker.get_current_task_attempt_number()
    return {**vars(ended), "node": ray.get_runtime_context().get_node_id()[:NODE_ID], "lost": lost}


def run_here(root: Path, words: list[str], waivers: str | None, folder: str, python: str) -> Ended:
    """Run the suites in a folder of their own, which is removed, and return how they ended.

    `root`: the folder with the package `coldproof`. Hypothesis stores its examples in the run's folder too.
    """
    place, began = Path(tempfile.mkdtemp(prefix="coldproof-")), time.monotonic()
    try:
        if waivers is not None:
            (place / KNOWN_ISSUES).write_text(waivers, encoding="utf-8")
        code = run_guarded(root, [python, "-m", "coldproof", "run", *words], place)
        log = (place / "log").read_bytes()[-LOG_BYTES:].decode(errors="replace")
        return Ended(code=code, files=pack(place / folder), log=log, seconds=round(time.monotonic() - began, 3))
    finally:
        with uninterrupted():
            shutil.rmtree(place, ignore_errors=True)


def run_guarded(root: Path, command: list[str], place: Path) -> int:
    """Run a command that ends with this task, with its output in the file `log`, and return its exit code."""
    with (place / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", str(root.joinpath(*GUARD)), *command],
            cwd=place,
            env=environment(root),
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
            return process.returncode
        finally:
            with uninterrupted():
                if process.stdin is not None:
                    process.stdin.close()
                process.wait()


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore interrupts: a driver cancels a task again until it has ended, also while it ends its run."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def environment(root: Path) -> dict[str, str]:
    """The node's, with our sources in front and without what Ray tells its own workers: an engine may use Ray too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), kept.get("PYTHONPATH", ""))))}


def pack(folder: Path) -> bytes:
    """Return all files of a folder as tar.gz; an archive without files if it does not exist."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                archive.add(path, path.relative_to(folder).as_posix())
    return packed.getvalue()
