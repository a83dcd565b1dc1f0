"""What happens on a node: `pytest suites` as a process of its own, its events sent home as they are written.

Ray carries this module to the node as it is, where nothing of Coldproof need be installed in Ray's own Python: it knows
the standard library alone. Whatever ends the task ends the process and its engines with it: `adapters/guard.py` sees
the pipe close, also after SIGKILL.
"""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

EVENTS = "events.ndjson"
LOOK_SECONDS = 0.3
MOST_BYTES = 4 * 2**20  # sent at a time
LOG_BYTES = 64 * 2**10  # of the end of what pytest wrote


@dataclass(frozen=True)
class Order:
    """One run as its node needs it. `root`: the checkout; "" for the files that Ray brought, where the task is.

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
class Began:
    """A node took the run."""

    node: str


@dataclass(frozen=True)
class Lines:
    """Events, whole lines of them."""

    lines: bytes


@dataclass(frozen=True)
class Ended:
    """The process ended: its exit code, all files but the events, as tar.gz, and the end of what it wrote."""

    code: int
    files: bytes
    log: str


Message = Began | Lines | Ended
KINDS: dict[str, type[Message]] = {kind.__name__: kind for kind in (Began, Lines, Ended)}


def at_node(order: tuple[Any, ...]) -> Iterator[tuple[Any, ...]]:
    """The task: plain values in and out, which need none of our modules.

    Nodes are told apart by Ray's own ids: names of hosts are not for a report.
    """
    import ray

    node = str(ray.get_runtime_context().get_node_id())[:12]
    for message in perform(Order(*order), node):
        yield (type(message).__name__, *vars(message).values())


def received(told: tuple[Any, ...]) -> Message:
    """A message as it was sent."""
    return KINDS[told[0]](*told[1:])


def perform(order: Order, node: str) -> Iterator[Message]:
    """Run it, and tell; the end is told last of all, as the driver may be gone as soon as it has heard it."""
    yield Began(node)
    with tempfile.TemporaryDirectory(prefix="coldproof-", ignore_cleanup_errors=True) as place:
        ended = yield from watched(order, Path(place))
    yield ended


def watched(order: Order, place: Path) -> Generator[Message, None, Ended]:
    """The run in a folder of its own, which is also where hypothesis keeps its examples; returns how it ended."""
    root = Path(order.root or os.getcwd())
    python, report, log = order.python or sys.executable, place / order.folder, place / "log"
    command = [python, "-m", "pytest", str(root / "suites"), *order.words, f"--report-dir={order.folder}"]
    if order.waivers:
        command.append(f"--known-issues={root / order.waivers}")
    with log.open("wb") as file:
        process = subprocess.Popen(
            [sys.executable, str(root / "adapters" / "guard.py"), *command],
            cwd=place,
            env=environment(root),
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=subprocess.STDOUT,
        )
        try:
            for lines in followed(report / EVENTS, process):
                yield Lines(lines)
        finally:
            if process.stdin is not None:
                process.stdin.close()
            code = process.wait()
    return Ended(code, packed(report), log.read_bytes()[-LOG_BYTES:].decode(errors="replace"))


def environment(root: Path) -> dict[str, str]:
    """The node's, with our sources in front and without what Ray tells its own workers: an engine may use Ray too."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(filter(None, (str(root), kept.get("PYTHONPATH", ""))))}


def followed(path: Path, process: subprocess.Popen[bytes]) -> Iterator[bytes]:
    """What is appended to a file, in whole lines, until its writer has ended."""
    read = 0
    while True:
        ended = process.poll() is not None
        chunk = b""
        if path.exists():
            with path.open("rb") as file:
                file.seek(read)
                chunk = file.read(MOST_BYTES)
                if b"\n" not in chunk:
                    chunk += file.readline()  # one that is longer than what is sent at a time
        whole = chunk[: chunk.rfind(b"\n") + 1]
        read += len(whole)
        if whole:
            yield whole
        elif ended:
            return
        else:
            time.sleep(LOOK_SECONDS)


def packed(folder: Path) -> bytes:
    """All files of a folder but the events, which are home already."""
    held = io.BytesIO()
    with tarfile.open(fileobj=held, mode="w:gz") as archive:
        for path in sorted(folder.rglob("*")) if folder.is_dir() else []:
            if path.is_file() and path != folder / EVENTS:
                archive.add(path, path.relative_to(folder).as_posix())
    return held.getvalue()
