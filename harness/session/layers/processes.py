"""The processes of a run's layers: each is a pytest session with the options of the run and one layer.

All append to the run's events. The run's own process starts them, follows the events, and writes the reports.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from coldproof.adapters.spec.layer import Layer
from coldproof.harness.release.bundle.run_folder import EVENTS

POLL_SECONDS = 0.1
LONGEST_REASON = 400  # characters of a layer's last words that are shown
QUIET = ("-p", "no:cacheprovider", "--color=no")


class LayerEnd(msgspec.Struct, frozen=True):
    """How a layer's process ended. `said`: the last line of its output."""

    layer: str
    code: int
    said: str
    log: Path


def run_layers(
    layers: Sequence[Layer], words: Sequence[str], folder: Path, *, on_event: Callable[[dict[str, Any]], None]
) -> list[LayerEnd]:
    """Run all layers at once and wait for them. `words`: pytest's arguments. `folder`: the report folder.

    `on_event` is called with each event of a layer soon after it happened.
    """
    logs = {layer.name: folder / f"layer-{layer.name}.log" for layer in layers}
    words = [*words, *QUIET, "--joined", ",".join(layer.name for layer in layers)]
    running = {layer.name: start(layer, words, logs[layer.name]) for layer in layers}
    events = new_events(folder / EVENTS)
    while True:
        alive = any(process.poll() is None for process in running.values())
        for event in next(events):
            on_event(event)
        if not alive:
            break
        time.sleep(POLL_SECONDS)
    return [LayerEnd(name, process.returncode, last_line(logs[name]), logs[name]) for name, process in running.items()]


def start(layer: Layer, words: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start the process of a layer. Its output goes to a file, because the terminal shows all layers."""
    command = [sys.executable, "-m", "pytest", *words, "--layers", layer.name]
    with log.open("wb") as output:
        return subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT)


def new_events(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield, each time, the events of layers that were written since the last time."""
    with path.open("rb") as lines:
        rest = b""
        while True:
            *complete, rest = (rest + lines.read()).split(b"\n")
            yield [event for line in complete if (event := msgspec.json.decode(line)).get("layer")]


def last_line(log: Path) -> str:
    """Return the last line that a layer wrote."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:LONGEST_REASON] if lines else ""
