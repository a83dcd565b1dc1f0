"""The processes of a run's layers: each is a pytest session with the options of the run and one layer.

All append to the run's events. The run's own process starts them, follows the events, and writes the reports.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec
import pytest

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.forked import VARIABLE, ForkedProcess, fork_server
from coldproof.adapters.common.redact import redact_file
from coldproof.adapters.registry import ENGINES
from coldproof.adapters.spec.engine_spec import EngineSpec
from coldproof.adapters.spec.layer import Layer
from coldproof.harness.option_table import option_words
from coldproof.harness.release.bundle.run_folder import EVENTS
from coldproof.harness.session.pytest_command import PLUGIN
from coldproof.reports.exports.write import TEMPLATES
from coldproof.reports.files.own_folder import claim

POLL_SECONDS = 0.1
LONGEST_REASON = 400  # characters of a layer's last words that are shown
PLAIN = ("-v", "-p", "no:cacheprovider", "--color=no")  # their output is a log for those who want everything


class LayerEnd(msgspec.Struct, frozen=True):
    """How a layer's process ended. `said`: the last line of its output."""

    layer: str
    code: int
    said: str
    log: Path


class LayerProcesses:
    """All layers of a run, at once. `words`: pytest's arguments. `folder`: the report folder.

    Their processes are forked from one that has imported the engines, because three imports side by side take a minute.
    Raises ForkServerError.
    """

    def __init__(self, layers: Sequence[Layer], words: Sequence[str], folder: Path) -> None:
        self.events = folder / EVENTS
        self.logs = {layer.name: folder / f"layer-{layer.name}.log" for layer in layers}
        words = [*words, *PLAIN, *option_words(joined=tuple(layer.name for layer in layers))]
        address = fork_server(PLUGIN, *preloads(ENGINES[layer.engine] for layer in layers))
        self.running = {
            name: start(pytest_main, [*words, *option_words(layers=name)], log, address=address)
            for name, log in self.logs.items()
        }

    def follow(self, on_event: Callable[[dict[str, Any]], None]) -> list[LayerEnd]:
        """Wait for all layers. `on_event` is called with each event of a layer soon after it happened."""
        events = new_events(self.events)
        while True:
            alive = any(process.poll() is None for process in self.running.values())
            for event in next(events):
                on_event(event)
            if not alive:
                break
            time.sleep(POLL_SECONDS)
        codes = {name: process.wait() for name, process in self.running.items()}
        for log in self.logs.values():  # an engine in the same process writes there, past every filter
            redact_file(log)
        return [LayerEnd(name, code, last_line(self.logs[name]), self.logs[name]) for name, code in codes.items()]

    def terminate(self) -> None:
        """Tell the layers to end."""
        for process in self.running.values():
            process.terminate()


def all_imports() -> list[str]:
    """Return what a fork server imports and calls whose forks are whole runs on any engine, with a report."""
    return [PLUGIN, TEMPLATES, *preloads(ENGINES.values())]


def preloads(engines: Iterable[EngineSpec]) -> list[str]:
    """Return the functions that import these engines, as `module:function`."""
    found = [engine.preload for engine in engines]
    return list(dict.fromkeys(f"{one.__module__}:{one.__qualname__}" for one in found if one is not None))


def start(
    function: Callable[[list[str]], int], words: Iterable[str], log: Path, *, address: str, folder: Path | None = None
) -> ForkedProcess:
    """Call a function in a new process, in `folder` or this process's, with its output in a file."""
    name = f"{function.__module__}:{function.__qualname__}"
    environment = {**current_environment(), VARIABLE: address}  # its engines are forked from the same process
    with claim(log).open("wb") as output:
        return ForkedProcess(
            address, name, tuple(words), environment=environment, output=output, guarded=False, folder=folder
        )


def pytest_main(words: list[str]) -> int:
    """Run pytest and return its exit code."""
    return int(pytest.main(words))


def new_events(path: Path) -> Iterator[list[dict[str, Any]]]:
    """Yield, each time, the events of layers that were written since the last time."""
    with path.open("rb") as lines:
        rest = b""
        while True:
            *complete, rest = (rest + lines.read()).split(b"\n")
            yield [event for event in map(decoded, complete) if event.get("layer")]


def decoded(line: bytes) -> dict[str, Any]:
    """Return the event in a line; {} for one that a full disk cut short."""
    try:
        event: dict[str, Any] = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return {}
    return event


def last_line(log: Path) -> str:
    """Return the last line that a layer wrote."""
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:LONGEST_REASON] if lines else ""
