"""Runs `coldproof run` as a process on a node, and sends its events to the driver as they are written.

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
import threading
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVENTS = "events.ndjson"
GUARD = ("coldproof", "adapters", "common", "guard.py")  # below the root
POLL_SECONDS = 0.3
MAX_BYTES = 4 * 2**20  # of events in one message
LOG_BYTES = 64 * 2**10  # kept from the end of pytest's output


@dataclass(frozen=True)
class Order:
    """One run, as its node needs it. `root`: the folder that has the package `coldproof`; "" for the files that Ray
    brought, where the task is.

    `folder`: the report folder as its driver calls it, so that the commands in the report are right there; `waivers`:
    the known issues, below the root or anywhere.
    """

    unit: str
    words: tuple[str, ...]
    waivers: str
    folder: str
    root: str
    python: str


@dataclass(frozen=True)
class RunStarted:
    """A node has started the run."""

    node: str


@dataclass(frozen=True)
class EventLines:
    """Complete lines of the event log."""

    lines: bytes


@dataclass(frozen=True)
class RunEnded:
    """The process ended. `files`: all files except the events, as tar.gz; `log`: the end of its output."""

    code: int
    files: bytes
    log: str


Message = RunStarted | EventLines | RunEnded
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in (RunStarted, EventLines, RunEnded)}


def at_node(order: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """Run an order and yield its messages. This is the Ray task. It takes and yields plain values, not our classes.

    Nodes are identified by Ray's node ids, because host names must not be in a report.
    """
    import ray

    node = str(ray.get_runtime_context().get_node_id())[:12]
    for message in run_order(Order(*order), node):
        yield (type(message).__name__, *vars(message).values())


def decode_message(values: tuple[Any, ...]) -> Message:
    """Return the message from its plain values."""
    return KINDS[values[0]](*values[1:])


def run_order(order: Order, node: str) -> Iterator[Message]:
    """Run an order and yield its messages. RunEnded comes last, because the driver may exit when it receives it."""
    yield RunStarted(node)
    place = Path(tempfile.mkdtemp(prefix="coldproof-"))
    try:
        ended = yield from run_process(order, place)
    finally:
        with uninterrupted():
            shutil.rmtree(place, ignore_errors=True)
    yield ended


@contextlib.contextmanager
def uninterrupted() -> Iterator[None]:
    """Ignore interrupts: a driver cancels a task again until it has ended, also while it ends its run."""
    before = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or before is None:  # not ours to change
        yield
        return
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def run_process(order: Order, place: Path) -> Generator[Message, None, RunEnded]:
    """Run pytest in its own folder, yield its events and return how it ended. Hypothesis stores its examples there."""
    root = Path(order.root or os.getcwd())
    python, report, log = order.python or sys.executable, place / order.folder, place / "log"
    command = [python, "-m", "coldproof", "run", *order.words, f"--report-dir={order.folder}"]
    if order.waivers:
        command.append(f"--known-issues={root / order.waivers}")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, "-P", str(root.joinpath(*GUARD)), *command],
            cwd=place,
            env=environment(root),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            for lines in follow_file(report / EVENTS, process):
                yield EventLines(lines)
        finally:
            with uninterrupted():
                if process.stdin is not None:
                    process.stdin.close()
                code = process.wait()
    return RunEnded(code, pack_files(report), log.read_bytes()[-LOG_BYTES:].decode(errors="replace"))


def environment(root: Path) -> dict[str, str]:
    """The node's, with our sources in front and without what Ray tells its own workers: an engine may use Ray too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), kept.get("PYTHONPATH", ""))))}


def follow_file(path: Path, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """Yield what is appended to a file, in complete lines, until the writing process has ended."""
    read = 0
    while True:
        ended = process.poll() is not None
        chunk = b""
        if path.exists():
            with path.open("rb") as file:
                file.seek(read)
                chunk = file.read(MAX_BYTES)
                if b"\n" not in chunk:
                    chunk += file.readline()  # a line longer than MAX_BYTES
        whole = chunk[: chunk.rfind(b"\n") + 1]
        read += len(whole)
        if whole:
            yield whole
        elif ended:
            return
        else:
            time.sleep(POLL_SECONDS)


def pack_files(folder: Path) -> bytes:
    """Return all files of a folder as tar.gz, except the events, which were sent already."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
            if path.is_file() and path != folder / EVENTS:
                archive.add(path, path.relative_to(folder).as_posix())
    return held.getvalue()
