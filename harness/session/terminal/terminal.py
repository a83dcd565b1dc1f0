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
from coldproof.harness.schema.results import Calibration, Results
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.terminal.progress import RunProgress, elapsed_text, estimate_text
from coldproof.reports.exports.terminal import closing_lines, switch_lines
from coldproof.reports.format.text import one_line, visible

REDRAW_SECONDS = 0.1  # an in-process engine may run a hundred examples in one second
TRIAL_LINE_SECONDS = 120  # in a log, interval of lines about a test that is still running
PHASE_LINE_SECONDS = 15  # in a log, interval of lines about a phase that counts its answers
LOG_MARK = "  | "  # begins each line of an engine's log
LONGEST_TITLE = 70  # characters of a title beside a verdict
LONGEST_REASON = 200  # characters of a reason that is printed beside a verdict
EXPECTED = (Verdict.CONFORMS, Verdict.KNOWN_ISSUE)  # verdicts that need no reason beside them

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
        self.told: set[str] = set()  # rules and notes that were written

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
            case "switches":
                for words in switch_lines(fields["switches"]):
                    self.line(words)
            case "calibration":
                self.calibration(fields["calibration"])
            case "requirement":
                self.progress.on_event(kind, fields)
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
                self.engine_lost(fields)
            case "kind_dropped":
                self.line(f"from now on, {fields['dropped'].words}")
            case "waits":
                self.progress.on_event(kind, fields)
                self.panel()
                if time.monotonic() - self.last_line_at > PHASE_LINE_SECONDS and not self.console.is_terminal:
                    self.line(self.progress.line(time.monotonic() - self.began))
            case "verdict":
                self.verdict(fields)
            case "proposed":
                self.proposed(**fields)
            case "problem":
                self.stop_live()  # pytest is about to write the reason

    def calibration(self, calibration: Calibration) -> None:
        """Write the comparison rule and the notes of a cell, those that no earlier cell had."""
        for words in (f"comparison rule: {calibration.rule}", *(f"note: {note}" for note in calibration.notes)):
            if words not in self.told:
                self.line(words)
                self.told.add(words)

    @property
    def verbose(self) -> bool:
        """Return whether pytest was asked for everything (-v)."""
        return bool(self.reporter.verbosity > 0)

    def engine_lost(self, fields: dict[str, Any]) -> None:
        """Count a lost engine: the run ends some on purpose, and the verdict names those that a failure ended."""
        self.progress.on_event("engine_lost", fields)
        if not self.verbose:
            return
        self.line("the engine terminated or stopped responding; starting it again. End of its log:")
        for words in self.printable(fields["log_tail"]).split("\n"):
            self.line(f"{LOG_MARK}{words}")

    def phase(self, fields: dict[str, Any]) -> None:
        """Show the start of a phase, or its progress. What happens for one trial or finding gets no line of its own."""
        self.progress.on_event("phase", fields)
        detail = fields.get("detail", False) or self.progress.in_trial
        if self.console.is_terminal:
            self.panel()
        elif "of" in fields:
            if time.monotonic() - self.last_line_at > PHASE_LINE_SECONDS:
                self.line(self.progress.now)
        elif self.verbose or not detail:
            self.line(self.progress.now)

    def verdict(self, fields: dict[str, Any]) -> None:
        """Write the verdict of a requirement when its last trial has ended, with the time left."""
        self.progress.on_event("verdict", fields)
        done = self.progress.requirement_done(fields)
        if done is None:
            return
        left = estimate_text(self.progress.seconds_left(time.monotonic() - self.began))
        number, of = self.progress.requirements_done()
        verdict, reason = done.conclusion()
        words = Text(f"[{number}/{of}] {fields['requirement']} ")
        words.append(verdict.value, style=STYLES.get(verdict, "yellow"))
        about = f"; about {left} left" if left else ""
        title = one_line(self.one_line(done.title or fields["title"]), LONGEST_TITLE)
        cost = f": {done.examples} examples, {done.seconds:.0f} s" if verdict is not Verdict.UNSUPPORTED else ""
        words.append(f" {title}{cost}{about}")
        if verdict not in EXPECTED:
            words.append(f": {one_line(self.one_line(reason), LONGEST_REASON)}{done.losses_text}")
        self.fresh_line()
        self.last_line_at = time.monotonic()
        self.console.print(words)

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

    def print_summary(self, results: Results, folder: Path, *more: str, own: Sequence[str] = ()) -> None:
        """Write the end of the run, whose last line is the path of the report.

        `more`: lines before that one. `own`: the options that `coldproof prove` needs for this run.
        """
        *lines, path = closing_lines(results, folder.resolve() / "index.html", own=own)
        for words in (*lines, *more, path):
            self.line(words)
