"""Shows the progress of a run on pytest's output: current phase, counts, and estimated time left."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console, Group
from rich.live import Live
from rich.text import Text

from coldproof.adapters.common.redact import redacted
from coldproof.harness.schema.results import Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.terminal.progress import RunProgress, elapsed_text, estimate_text
from coldproof.reports.assemble.causes import cause_summary
from coldproof.reports.assemble.over_time import growth_text as in_words_of
from coldproof.reports.assemble.reach import reach_summary
from coldproof.reports.format.shell import command_line
from coldproof.reports.format.text import visible

REDRAW_SECONDS = 0.1  # an in-process engine may run a hundred examples in one second
TRIAL_LINE_SECONDS = 120  # in a log, interval of lines about a test that is still running
PHASE_LINE_SECONDS = 15  # in a log, interval of lines about a phase that counts its answers
LOG_MARK = "  | "  # begins each line of an engine's log
MAX_SUMMARY_LINES = 6  # of each kind in the summary, which should fit on a screen

STYLES = {
    Verdict.CONFORMS: "green",
    Verdict.VIOLATED: "bold red",
    Verdict.KNOWN_ISSUE: "cyan",
    Verdict.ERROR: "bold red",
}


class PipeSafeConsole(Console):
    """A console that raises on a broken pipe. rich would end the process, and the report would be lost."""

    def on_broken_pipe(self) -> None:
        """Raise, so that Terminal stops writing."""
        raise BrokenPipeError


class Terminal:
    """Subscribes to the run's events. On a terminal it shows a live panel; in a log it writes lines.

    It is also a pytest plugin, so that it can remove the panel before pytest writes.
    """

    def __init__(self, reporter: Any, capture: Any) -> None:
        self.reporter, self.capture = reporter, capture
        self.console = PipeSafeConsole(file=reporter._tw._file, soft_wrap=True, highlight=False)
        self.closed = False  # whether writing failed because the reader closed the pipe
        self.live: Live | None = None
        self.began = time.monotonic()
        self.drawn_at = 0.0
        self.last_line_at = self.began  # time of the latest line
        self.progress = RunProgress()

    def on_event(self, kind: str, fields: dict[str, Any]) -> None:
        """Show one event. pytest's output capture is suspended meanwhile, because tests run with captured output."""
        if kind == "usage" or self.closed:
            return  # usage is only for the report, and comes from another thread, which must not write
        try:
            with self.capture.global_and_fixture_disabled() if self.capture else contextlib.nullcontext():
                self.show(kind, fields)
        except OSError:  # nobody reads the output any more; events and report continue
            self.closed = True
            self.live = None

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """Remove the panel: pytest is about to write a test's name, which the panel would erase."""
        self.stop_live()

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logreport(self) -> None:
        """Remove the panel: pytest is about to write the outcome of a test."""
        self.stop_live()

    def fresh_line(self) -> None:
        """End the line of dots that pytest may be writing."""
        self.stop_live()
        self.reporter.ensure_newline()

    def show(self, kind: str, fields: dict[str, Any]) -> None:
        """Write the lines for one event, or update the panel."""
        match kind:
            case "phase":
                self.phase(fields)
            case "calibration":
                self.line(f"comparison rule: {fields['calibration'].rule}")
                for note in fields["calibration"].notes:
                    self.line(f"note: {note}")
            case "trial":
                self.progress.on_event(kind, fields)
                self.panel()
            case "example":
                self.progress.on_event(kind, fields)
                if time.monotonic() - self.drawn_at > REDRAW_SECONDS:
                    self.panel()
                if time.monotonic() - self.last_line_at > TRIAL_LINE_SECONDS and not self.console.is_terminal:
                    elapsed = elapsed_text(time.monotonic() - self.began)
                    self.line(f"{self.progress.now}: {self.progress.shown()}, {elapsed} elapsed")
            case "engine_lost":
                self.line("the engine terminated or stopped responding; starting it again. End of its log:")
                for words in self.printable(fields["log_tail"]).split("\n"):
                    self.line(f"{LOG_MARK}{words}")
            case "kind_dropped":
                self.line(f"from now on, {fields['dropped'].words}")
            case "verdict":
                self.verdict(fields)
            case "proposed":
                self.proposed(**fields)
            case "problem":
                self.stop_live()  # pytest is about to write the reason

    def phase(self, fields: dict[str, Any]) -> None:
        """Show the start of a phase, or its progress."""
        self.progress.on_event("phase", fields)
        if self.console.is_terminal:
            self.panel()
        elif "of" not in fields or time.monotonic() - self.last_line_at > PHASE_LINE_SECONDS:
            self.line(self.progress.now)

    def verdict(self, fields: dict[str, Any]) -> None:
        """Write the verdict of a trial, and the estimated time left."""
        self.progress.on_event("verdict", fields)
        verdict: Verdict = fields["verdict"]
        left = estimate_text(self.progress.seconds_left(time.monotonic() - self.began))
        words = Text(f"[{self.progress.done}/{fields['of']}] {fields['requirement']} ")
        words.append(verdict.value, style=STYLES.get(verdict, "yellow"))
        title = self.one_line(fields["title"])
        about = f"; about {left} left" if left else ""
        words.append(f" {title}: {fields['examples']} examples, {fields['seconds']:.0f} s{about}")
        self.fresh_line()
        self.last_line_at = time.monotonic()
        self.console.print(words)
        if verdict not in (Verdict.CONFORMS, Verdict.UNSUPPORTED):
            self.line(f"    {fields['reason'][:400]}")

    def proposed(self, *, path: str, entries: int, problem: str) -> None:
        """Write the number and the file of the proposed known issues, or why they could not be written."""
        many = "1 known issue" if entries == 1 else f"{entries} known issues"
        self.line(
            f"cannot write proposed known issues: {problem}" if problem else f"{many} proposed; review them in {path}"
        )

    def panel(self, lines: Sequence[str] = ()) -> None:
        """Redraw the live panel with these lines, or with those of this run. Does nothing in a log.

        No thread redraws it, and no stream is redirected, so that pytest captures all output between two events.
        """
        if not self.console.is_terminal:
            return
        if self.live is None:
            self.reporter.ensure_newline()  # otherwise removing the panel would erase pytest's dots
            self.live = Live(
                console=self.console, auto_refresh=False, transient=True, redirect_stdout=False, redirect_stderr=False
            )
            self.live.start()
        self.drawn_at = time.monotonic()
        first, *more = lines or self.progress.lines(self.drawn_at - self.began)
        shown = Group(self.panel_line(first, "bold"), *(self.panel_line(f"  {words}", "dim") for words in more))
        self.live.update(shown, refresh=True)

    def panel_line(self, words: str, style: str) -> Text:
        """Return one line of the panel, cut to the width: a wrapped line would stay on the screen."""
        return Text(self.one_line(words), style=style, no_wrap=True, overflow="ellipsis")

    def line(self, words: str) -> None:
        """Write one line. Text with line feeds, which may come from a server, cannot look like lines of the run."""
        self.fresh_line()
        self.last_line_at = time.monotonic()
        self.console.print(Text(self.one_line(words)))

    def one_line(self, words: str) -> str:
        """Return printable text on one line."""
        return " ".join(self.printable(words).split("\n"))

    def printable(self, words: str) -> str:
        """Return text without secrets and control characters, encodable for the terminal. It may be an engine's log."""
        shown = "\n".join(visible(line) for line in redacted(words).splitlines())
        return shown.encode(self.console.encoding, "replace").decode(self.console.encoding)

    def stop_live(self) -> None:
        """Remove the live panel."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def print_summary(self, results: Results, folder: Path) -> None:
        """Write the summary: headline, causes, known issues, resource growth, replay commands and the report's path."""
        self.line("")
        self.line(results.headline)
        if results.cases:
            self.line(cause_summary(results.causes))
        self.print_first(
            [
                f"known issue {waiver.state_text}: {waiver.place} {waiver.link}"
                for waiver in sorted(results.waivers, key=lambda waiver: waiver.state == "used")
                if waiver.state in ("used", "stale", "expired")
            ],
            "known issues",
        )
        self.print_first([f"{one.process}, {one.what}: {in_words_of(one)}" for one in results.growth], "processes")
        self.print_first(
            [f"replay {c.id}: {command_line(c.replay)}" for c in results.cases if c.known_issue is None],
            "cases to replay",
        )
        if results.reach:
            self.line(reach_summary(results.reach))
        if results.problem:
            self.line(f"stopped: {results.problem}")
        self.line(f"report: {folder.resolve() / 'index.html'}")

    def print_first(self, lines: list[str], what: str) -> None:
        """Write the first lines, and how many more are in the report."""
        for words in lines[:MAX_SUMMARY_LINES]:
            self.line(words)
        if len(lines) > MAX_SUMMARY_LINES:
            self.line(f"{len(lines) - MAX_SUMMARY_LINES} more {what} are in the report")
