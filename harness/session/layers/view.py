"""Shows the progress of several layers at once: a line for each, and the verdicts as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from coldproof.adapters.spec.layer import Layer
from coldproof.harness.session.terminal.progress import RunProgress
from coldproof.harness.session.terminal.terminal import EXPECTED, LONGEST_REASON, Terminal
from coldproof.reports.format.text import one_line

LINE_SECONDS = 60  # in a log, interval of the lines about layers


class LayersView:
    """The progress of each layer, on the terminal of the run."""

    def __init__(self, terminal: Terminal, layers: Sequence[Layer]) -> None:
        self.terminal = terminal
        self.progress = {layer.name: RunProgress() for layer in layers}
        self.written_at = time.monotonic()
        self.told: set[tuple[str, str, str]] = set()  # layer, requirement and verdict of the lines that were written

    def on_event(self, event: dict[str, Any]) -> None:
        """Show one event of a layer."""
        layer, progress = event["layer"], self.progress[event["layer"]]
        progress.on_event(event["event"], event)
        match event["event"]:
            case "verdict":
                self.verdict(layer, event)
            case "problem":
                self.terminal.line(f"{layer}: {event['message']}")
            case "engine_lost" if self.terminal.verbose:
                self.terminal.line(f"{layer}: the engine ended or hangs; starting it again")
        self.redraw()

    def verdict(self, layer: str, event: dict[str, Any]) -> None:
        """Write a verdict that is not expected, once for each requirement; with -v, each."""
        told = layer, event["requirement"], event["verdict"]
        if event["verdict"] in EXPECTED or (told in self.told and not self.terminal.verbose):
            return
        self.told.add(told)
        reason = one_line(event["reason"], LONGEST_REASON)
        self.terminal.line(f"{layer}: {event['requirement']} {event['verdict']} in {event['cell']}: {reason}")

    def redraw(self) -> None:
        """Update the panel, or write its lines into a log from time to time."""
        if self.terminal.console.is_terminal:
            self.terminal.panel(self.lines())
        elif time.monotonic() - self.written_at > LINE_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the progress of all layers as one line."""
        self.written_at = time.monotonic()
        self.terminal.line(" | ".join(" ".join(line.split()) for line in self.lines()))

    def lines(self) -> list[str]:
        """Return a line for each layer."""
        elapsed = time.monotonic() - self.terminal.began
        return [f"{name:<7} {progress.line(elapsed)}" for name, progress in self.progress.items()]
