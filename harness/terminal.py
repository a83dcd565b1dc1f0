"""Shows a run's events where pytest writes: what is going on, how far it is, about how long it still takes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.live import Live
from rich.spinner import Spinner
from rich.text import Text

from reports.causes import causes_of, counted
from reports.schema import Results, Verdict
from reports.text import visible
from reports.waivers import scope, state_in_words

STYLES = {
    Verdict.CONFORMS: "green",
    Verdict.VIOLATED: "bold red",
    Verdict.KNOWN_ISSUE: "cyan",
    Verdict.ERROR: "bold red",
}


class Terminal:
    """A subscriber to the run's events. On a terminal it keeps a live line; in a log it writes a line an event."""

    def __init__(self, reporter: Any, capture: Any) -> None:
        self.reporter, self.capture = reporter, capture
        self.console = Console(file=reporter._tw._file, soft_wrap=True, highlight=False)
        self.live: Live | None = None
        self.began = time.monotonic()
        self.done = self.examples = 0
        self.now = ""

    def on_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Show one event, if it is for people. Tests run with their output captured; this line is not theirs."""
        with self.capture.global_and_fixture_disabled() if self.capture else contextlib.nullcontext():
            self.show(kind, fields)

    def fresh_line(self) -> None:
        """End the line of dots that pytest may be writing."""
        self.stop_live()
        self.reporter.ensure_newline()

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        """Write what an event has to tell."""
        match kind:
            case "phase":
                self.working(f"{fields['words']} ...")
            case "calibration":
                self.line(f"comparison rule: {fields['calibration'].rule}")
                for note in fields["calibration"].notes:
                    self.line(f"note: {note}")
            case "trial":
                self.examples, self.now = 0, f"{fields['requirement']} {fields['title']} [{fields['cell']}]"
                self.working(self.now)
            case "example":
                self.examples += 1
                self.working(f"{self.now}: {self.examples} examples")
            case "engine_lost":
                self.line("the engine was lost and is started again; the end of its log:\n" + fields["log_tail"])
            case "verdict":
                self.verdict(fields)
            case "proposed":
                self.proposed(**fields)

    def verdict(self, fields: dict[str, Any]) -> None:
        """A requirement is concluded: say so, and estimate the rest from the time so far."""
        self.done += 1
        verdict: Verdict = fields["verdict"]
        elapsed = time.monotonic() - self.began
        left = elapsed / self.done * max(0, fields["of"] - self.done)
        about = f"; about {left / 60:.0f} min left" if left > 90 else f"; about {left:.0f} s left" if left > 1 else ""
        words = Text(f"[{self.done}/{fields['of']}] {fields['requirement']} ")
        words.append(verdict.value, style=STYLES.get(verdict, "yellow"))
        title = self.printable(fields["title"])
        words.append(f" {title}: {fields['examples']} examples, {fields['seconds']:.0f} s{about}")
        self.fresh_line()
        self.console.print(words)
        if verdict not in (Verdict.CONFORMS, Verdict.UNSUPPORTED):
            self.line(f"    {fields['reason'][:400]}")

    def proposed(self, *, path: str, entries: int, problem: str) -> None:
        """Where the proposed known issues are, and how many, or why they are nowhere."""
        many = "1 known issue" if entries == 1 else f"{entries} known issues"
        self.line(
            f"no known issues could be proposed: {problem}"
            if problem
            else f"{many} proposed, for you to review: {path}"
        )

    def working(self, words: str) -> None:
        """What is going on now. Only phases are worth a line in a log; examples are not."""
        if not self.console.is_terminal:
            if words.endswith("..."):
                self.line(words)
            return
        if self.live is None:
            self.live = Live(console=self.console, auto_refresh=False, transient=True)
            self.live.start()
        self.live.update(Spinner("dots", text=Text(self.printable(words))), refresh=True)

    def line(self, words: str) -> None:
        """One plain line."""
        self.fresh_line()
        self.console.print(Text(self.printable(words)))

    def printable(self, words: str) -> str:
        """Words that can neither control the terminal nor fail to be encoded for it. Engines' logs end up here."""
        shown = "\n".join(visible(line) for line in words.splitlines())
        return shown.encode(self.console.encoding, "replace").decode(self.console.encoding)

    def stop_live(self) -> None:
        """Take the live line away."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def end(self, results: Results, folder: Path) -> None:
        """The last words: headline, how many causes, waivers, where the report is."""
        self.line("")
        self.line(results.headline)
        if results.cases:
            self.line(counted(causes_of(results)))
        for waiver in results.waivers:
            if waiver.state in ("used", "stale", "expired"):
                said = f"{waiver.requirement} in {waiver.cell}, '{scope(waiver)}' {waiver.link}"
                self.line(f"known issue {state_in_words(waiver)}: {said}")
        for case in results.cases:
            if case.known_issue is None:
                self.line(f"replay {case.id}: {case.replay}")
        if results.problem:
            self.line(f"stopped: {results.problem}")
        self.line(f"report: {folder.resolve() / 'index.html'}")
