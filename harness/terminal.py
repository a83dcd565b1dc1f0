"""Shows a run's events where pytest writes: what is going on, how far it is, about how long it still takes."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from harness.tally import Tally, clock, in_words
from reports.causes import causes_of, counted
from reports.growth import in_words as in_words_of
from reports.schema import Results, Verdict
from reports.text import visible
from reports.waivers import scope, state_in_words

REDRAW = 0.1  # seconds: an engine in process may end a hundred examples in one
STILL = 120  # seconds: in a log, a requirement's test that takes longer says so as often
MOST_LINES = 6  # of one kind in the last words, which are to fit a screen

STYLES = {
    Verdict.CONFORMS: "green",
    Verdict.VIOLATED: "bold red",
    Verdict.KNOWN_ISSUE: "cyan",
    Verdict.ERROR: "bold red",
}


class Terminal:
    """A subscriber to the run's events. On a terminal it keeps a live panel; in a log it writes a line an event.

    It is a plugin of pytest's as well, so that the panel is gone whenever pytest writes.
    """

    def __init__(self, reporter: Any, capture: Any) -> None:
        self.reporter, self.capture = reporter, capture
        self.console = Console(file=reporter._tw._file, soft_wrap=True, highlight=False)
        self.live: Live | None = None
        self.began = time.monotonic()
        self.drawn_at = 0.0
        self.told_at = self.began  # when a log had its latest line
        self.tally = Tally()

    def on_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Show one event, if it is for people. Tests run with their output captured; this line is not theirs."""
        if kind == "usage":
            return  # for the report; and it comes from a thread, which has to keep off pytest's output
        with self.capture.global_and_fixture_disabled() if self.capture else contextlib.nullcontext():
            self.show(kind, fields)

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """pytest is about to write a test's name: the panel would take it away again."""
        self.stop_live()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        """pytest is about to write what became of a test."""
        self.stop_live()

    def fresh_line(self) -> None:
        """End the line of dots that pytest may be writing."""
        self.stop_live()
        self.reporter.ensure_newline()

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        """Write what an event has to tell."""
        match kind:
            case "phase":
                self.phase(fields["words"])
            case "calibration":
                self.line(f"comparison rule: {fields['calibration'].rule}")
                for note in fields["calibration"].notes:
                    self.line(f"note: {note}")
            case "trial":
                self.tally.trial(fields)
                self.panel()
            case "example":
                self.tally.example(fields)
                if time.monotonic() - self.drawn_at > REDRAW:
                    self.panel()
                if time.monotonic() - self.told_at > STILL and not self.console.is_terminal:
                    self.line(f"{self.tally.now}: {self.tally.shown()}, {clock(time.monotonic() - self.began)} so far")
            case "engine_lost":
                self.line("the engine was lost and is started again; the end of its log:\n" + fields["log_tail"])
            case "verdict":
                self.verdict(fields)
            case "proposed":
                self.proposed(**fields)
            case "problem":
                self.stop_live()  # pytest is about to write why it ends

    def phase(self, words: str) -> None:
        """Something that takes a while begins. It is worth a line in a log; an example is not."""
        self.tally.phase(words)
        if self.console.is_terminal:
            self.panel()
        else:
            self.line(self.tally.now)

    def verdict(self, fields: dict[str, Any]) -> None:
        """A requirement is concluded: say so, and estimate the rest from the time so far."""
        self.tally.verdict(fields)
        verdict: Verdict = fields["verdict"]
        left = in_words(self.tally.seconds_left(time.monotonic() - self.began))
        words = Text(f"[{self.tally.done}/{fields['of']}] {fields['requirement']} ")
        words.append(verdict.value, style=STYLES.get(verdict, "yellow"))
        title = self.printable(fields["title"])
        about = f"; about {left} left" if left else ""
        words.append(f" {title}: {fields['examples']} examples, {fields['seconds']:.0f} s{about}")
        self.fresh_line()
        self.told_at = time.monotonic()
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

    def panel(self) -> None:
        """Draw the live panel anew. There is none in a log.

        No thread redraws it and no stream is redirected: between two events all output is pytest's to capture.
        """
        if not self.console.is_terminal:
            return
        if self.live is None:
            self.reporter.ensure_newline()  # or taking the panel away would take pytest's dots with it
            self.live = Live(
                console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self.live.start()
        self.drawn_at = time.monotonic()
        first, *more = self.tally.lines(self.drawn_at - self.began)
        shown = Group(self.cut(first, "bold"), *(self.cut(f"  {words}", "dim") for words in more))
        self.live.update(shown, refresh=True)

    def cut(self, words: str, style: str) -> Text:
        """One line of the panel: a line that wrapped would be left behind on the screen."""
        one = " ".join(self.printable(words).split("\n"))
        return Text(one, style=style, no_wrap=True, overflow="ellipsis")

    def line(self, words: str) -> None:
        """One plain line."""
        self.fresh_line()
        self.told_at = time.monotonic()
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
        """The last words, on one screen: headline, how many causes, waivers, replays, where the report is."""
        self.line("")
        self.line(results.headline)
        if results.cases:
            self.line(counted(causes_of(results)))
        self.some(
            [
                f"known issue {state_in_words(waiver)}: {waiver.requirement} in {waiver.cell}, "
                f"'{scope(waiver)}' {waiver.link}"
                for waiver in sorted(results.waivers, key=lambda waiver: waiver.state == "used")
                if waiver.state in ("used", "stale", "expired")
            ],
            "known issues",
        )
        self.some([f"{one.process}, {one.what}: {in_words_of(one)}" for one in results.growth], "processes")
        self.some([f"replay {c.id}: {c.replay}" for c in results.cases if c.known_issue is None], "cases to replay")
        if results.problem:
            self.line(f"stopped: {results.problem}")
        self.line(f"report: {folder.resolve() / 'index.html'}")

    def some(self, lines: list[str], what: str) -> None:
        """The first few lines, and how many more the report has."""
        for words in lines[:MOST_LINES]:
            self.line(words)
        if len(lines) > MOST_LINES:
            self.line(f"and {len(lines) - MOST_LINES} more {what}, in the report")
