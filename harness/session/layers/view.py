"""Shows the progress of several layers at once: a line for each, and the verdicts as they come."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from coldproof.adapters.spec.layer import Layer
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.terminal.progress import RunProgress
from coldproof.harness.session.terminal.terminal import Terminal

LINE_SECONDS = 30  # in a log, interval of the lines about layers
REASON = 400  # characters of a reason that are shown
QUIET = (Verdict.CONFORMS, Verdict.UNSUPPORTED)  # verdicts that are only counted


class LayersView:
    """The progress of each layer, on the terminal of the run."""

    def __init__(self, terminal: Terminal, layers: Sequence[Layer]) -> None:
        self.terminal = terminal
        self.progress = {layer.name: RunProgress() for layer in layers}
        self.written_at = time.monotonic()

    def on_event(self, event: dict[str, Any]) -> None:
        """Show one event of a layer."""
        layer, progress = event["layer"], self.progress[event["layer"]]
        progress.on_event(event["event"], event)
        match event["event"]:
            case "verdict" if event["verdict"] not in QUIET:
                self.terminal.line(
                    f"{layer}: {event['requirement']} {event['verdict']} in {event['cell']}: {event['reason'][:REASON]}"
                )
            case "problem" | "engine_lost":
                self.terminal.line(f"{layer}: {event.get('message') or 'the engine ended or hangs; starting it again'}")
        self.redraw()

    def redraw(self) -> None:
        """Update the panel, or write its lines into a log from time to time."""
        if self.terminal.console.is_terminal:
            self.terminal.panel(self.lines())
        elif time.monotonic() - self.written_at > LINE_SECONDS:
            self.write()

    def write(self) -> None:
        """Write the line of each layer."""
        self.written_at = time.monotonic()
        for line in self.lines():
            self.terminal.line(line)

    def lines(self) -> list[str]:
        """Return a line for each layer."""
        elapsed = time.monotonic() - self.terminal.began
        return [f"{name:<7} {progress.line(elapsed)}" for name, progress in self.progress.items()]
