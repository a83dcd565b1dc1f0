"""Progress on a terminal is a live panel that is removed at the end; in a log it is a few plain lines."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.terminal import TerminalReporter
from support import report_samples as samples
from support.run_events import HOSTILE, verdict

from coldproof.harness.schema.evidence import ReportedEvidence
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.terminal.progress import RunProgress, elapsed_text, estimate_text
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.reports.exports.terminal import MOST_LINES

TRIAL = {"requirement": "LORA-3", "title": "in-place reload", "cell": "default", "of": 4}
UP_AND_ERASE = "\x1b[1A\x1b[2K"


class Screen(io.StringIO):
    """A stream that is a terminal."""

    def isatty(self) -> bool:
        return True


def example(*, failed: bool = False, **seen: float) -> dict[str, Any]:
    """Return the fields of an example's event that the terminal reads."""
    evidence = {ReportedEvidence[name.upper()]: value for name, value in seen.items()}
    return {"evidence": evidence, "findings": ["one"] if failed else []}


@pytest.fixture
def screen(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> tuple[Terminal, Screen]:
    """Return a terminal of eighty columns, and its stream."""
    for name, value in {"TERM": "xterm", "COLUMNS": "80", "LINES": "25"}.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "TTY_COMPATIBLE", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    file = Screen()
    return Terminal(TerminalReporter(pytestconfig, file), None), file


@pytest.fixture
def log(pytestconfig: pytest.Config) -> tuple[Terminal, io.StringIO]:
    """Return the log of a CI job, and its stream."""
    file = io.StringIO()
    return Terminal(TerminalReporter(pytestconfig, file), None), file


def test_the_panel_shows_the_requirement_its_evidence_and_the_progress() -> None:
    """Three lines have requirement, cell, examples, hits, evictions, preemptions, violations and time."""
    tally = RunProgress()
    tally.trial(TRIAL)
    for fields in (example(hit_tokens=1280, evicted=96), example(hit_tokens=64, preemptions=2, failed=True)):
        tally.example(fields)
    tally.verdict(verdict(Verdict.VIOLATED))
    assert tally.lines(100) == [
        "LORA-3 in-place reload [default]",
        "2 examples · 1,344 hit tokens · 96 evicted tokens · 2 preemptions · 1 failing",
        "1 of 4 done · 1 VIOLATED · 1:40 elapsed · about 5 min left",
    ]


def test_trials_that_go_on_later_are_counted_apart() -> None:
    """The time left is what they tell, less what has passed since: verdicts come in the end, and a proof takes long."""
    now = [0.0]
    tally = RunProgress(lambda: now[0])
    tally.trial(TRIAL)
    tally.waits({"cell": "default", "test": "one", "left": 270.0})
    tally.waits({"cell": "tight", "test": "one", "left": 265.0})
    now[0] = 200.0
    assert tally.line(210) == "0 of 4 done, 2 go on later · about 65 s left · LORA-3 in-place reload [default]"
    tally.phase({"words": "confirming LORA-3", "left": 80.0})
    assert tally.line(210) == "0 of 4 done, 2 go on later · about 80 s left · confirming LORA-3 ..."
    now[0] = 300.0  # it took longer than was expected, and nothing is known
    assert tally.line(310) == "0 of 4 done, 2 go on later · confirming LORA-3 ..."
    tally.verdict({**verdict(Verdict.CONFORMS), "cell": "tight", "test": "one"})
    assert tally.done_text == "1 of 4 done, 1 go on later"


def test_each_requirement_is_counted_from_nothing() -> None:
    """The counts of the previous requirement are not carried over."""
    tally = RunProgress()
    tally.trial(TRIAL)
    tally.example(example(hit_tokens=64, failed=True))
    tally.trial({**TRIAL, "requirement": "LORA-4"})
    assert tally.lines(1) == ["LORA-4 in-place reload [default]", "0 of 4 done · 0:01 elapsed"]
    tally.example(example())
    assert tally.lines(1)[1] == "1 example · 0 hit tokens · 0 evicted tokens · 0 preemptions"


@pytest.mark.parametrize(
    ("seconds", "measured", "guessed"), [(0.4, "0:00", ""), (59.6, "0:59", "60 s"), (754.2, "12:34", "13 min")]
)
def test_times_are_short(seconds: float, measured: str, guessed: str) -> None:
    """An estimate is rounded, and a measurement is not rounded up."""
    assert (elapsed_text(seconds), estimate_text(seconds)) == (measured, guessed)


def test_on_a_terminal_the_panel_is_taken_away_before_anything_is_written(screen: tuple[Terminal, Screen]) -> None:
    """Each line of the panel is erased, and the verdict takes its place."""
    terminal, file = screen
    terminal.on_event("trial", TRIAL)
    terminal.drawn_at = 0
    terminal.on_event("example", example(hit_tokens=640))
    assert "640 hit tokens" in file.getvalue()
    terminal.on_event("verdict", verdict())
    taken_away, _, left = file.getvalue().partition("[1/4]")
    assert taken_away.endswith(3 * UP_AND_ERASE)
    assert left.startswith(" LORA-1 ")
    assert terminal.live is None


def test_the_panel_begins_on_a_line_of_its_own(screen: tuple[Terminal, Screen]) -> None:
    """pytest's progress dots are kept."""
    terminal, file = screen
    terminal.reporter.write_fspath_result("tests/harness/session/terminal/test_terminal.py::x", ".")
    terminal.on_event("trial", TRIAL)
    assert file.getvalue().split("LORA-3")[0].count("\n") == 2  # one before the path is pytest's


def test_the_panel_is_removed_when_pytest_writes(screen: tuple[Terminal, Screen]) -> None:
    """Otherwise redrawing the panel would erase pytest's line instead of its own."""
    terminal, file = screen
    plugins = pytest.PytestPluginManager()
    seen: list[bool] = []

    class Writes:
        def pytest_runtest_logstart(self) -> None:
            seen.append(terminal.live is None)

        pytest_runtest_logreport = pytest_runtest_logstart

    plugins.register(terminal)
    plugins.register(Writes())  # the later one would come first
    for write in (
        lambda: plugins.hook.pytest_runtest_logstart(nodeid="x", location=("x", 1, "x")),
        lambda: plugins.hook.pytest_runtest_logreport(report=None),
    ):
        terminal.on_event("phase", {"words": "starting the engine"})
        write()
    assert seen == [True, True]
    assert file.getvalue().endswith(2 * UP_AND_ERASE)


def test_a_panel_is_never_wider_than_the_screen(screen: tuple[Terminal, Screen]) -> None:
    """A wrapped line could not be erased."""
    terminal, file = screen
    terminal.on_event("trial", {**TRIAL, "title": "long " * 100})
    assert "…" in file.getvalue()
    assert "long " * 16 not in file.getvalue()


def test_many_examples_a_second_are_counted_and_not_drawn(screen: tuple[Terminal, Screen]) -> None:
    """Drawing must not slow down the run."""
    terminal, file = screen
    terminal.on_event("trial", TRIAL)
    drawn = len(file.getvalue())
    for _ in range(20):
        terminal.on_event("example", example())
    terminal_wrote = len(file.getvalue()) - drawn
    assert terminal.progress.examples == 20
    assert terminal_wrote < 20 * drawn / 4


def test_a_run_that_ends_early_leaves_no_panel(screen: tuple[Terminal, Screen]) -> None:
    """pytest writes next, and its lines must not be erased."""
    terminal, _ = screen
    terminal.on_event("phase", {"words": "starting the engine"})
    assert terminal.live is not None
    terminal.on_event("problem", {"message": "no such model", "usage": False})
    assert terminal.live is None


def test_a_hostile_title_cannot_control_the_terminal(screen: tuple[Terminal, Screen]) -> None:
    """The title is neither markup nor an escape sequence."""
    terminal, file = screen
    terminal.on_event("trial", {**TRIAL, "requirement": HOSTILE})
    assert "[red]not red[/red]" in file.getvalue()
    assert not set("\x00\x07\x08\x9b") & set(file.getvalue())


def test_a_log_gets_phases_and_verdicts_and_nothing_else(log: tuple[Terminal, io.StringIO]) -> None:
    """A log has no escape sequences and no line per example."""
    terminal, file = log
    terminal.on_event("phase", {"words": "starting the engine"})
    terminal.on_event("trial", TRIAL)
    terminal.on_event("example", example(hit_tokens=640))
    terminal.on_event("verdict", verdict())
    assert file.getvalue() == "starting the engine ...\n[1/4] LORA-1 CONFORMS reload: 8 examples, 3 s\n"


def test_a_requirement_has_one_line_when_its_last_trial_has_ended(log: tuple[Terminal, io.StringIO]) -> None:
    """It has the worst verdict with its reason, the sum of all examples, and how often the engine ended."""
    terminal, file = log
    for name in ("LORA-1", "LORA-1", "CHAT-1"):
        terminal.on_event("requirement", {"id": name, "title": "reload"})
    terminal.on_event("trial", TRIAL)
    terminal.on_event("engine_lost", {"log_tail": "a line of its log"})
    terminal.on_event("phase", {"words": "confirming LORA-1"})
    terminal.on_event("verdict", {**verdict(Verdict.VIOLATED), "reason": "it differs"})
    assert file.getvalue() == ""
    terminal.on_event("verdict", verdict())
    said = "[1/2] LORA-1 VIOLATED reload: 16 examples, 6 s: it differs; "
    assert file.getvalue().startswith(said)
    assert file.getvalue().endswith("; the engine ended once and was started again\n")


def test_few_examples_conform_to_nothing_on_the_terminal_either(log: tuple[Terminal, io.StringIO]) -> None:
    """The line is the report's: one that says CONFORMS above an end that says NOT EXERCISED is believed by nobody."""
    terminal, file = log
    terminal.on_event("trial", TRIAL)
    terminal.on_event("verdict", {**verdict(), "requests": 16})
    said = "[1/4] LORA-1 NOT EXERCISED reload: 8 examples, 3 s: only 8 examples with 16 requests; CONFORMS needs 30"
    assert file.getvalue().startswith(said)


def test_what_the_engine_lacks_stands_beside_unsupported(log: tuple[Terminal, io.StringIO]) -> None:
    """Somebody with a misspelt capability reads it there; no example was drawn."""
    terminal, file = log
    terminal.on_event("trial", TRIAL)
    terminal.on_event("verdict", {**verdict(Verdict.UNSUPPORTED), "reason": "cache reset: HTTP 404"})
    assert file.getvalue() == "[1/4] LORA-1 UNSUPPORTED reload: cache reset: HTTP 404\n"


def test_what_a_finding_needs_has_no_line_of_its_own(log: tuple[Terminal, io.StringIO]) -> None:
    """Twenty findings are replayed one after the other."""
    terminal, file = log
    terminal.on_event("phase", {"words": "replaying the finding x", "detail": True})
    assert file.getvalue() == ""


@pytest.mark.parametrize("count", [0, 1, 12, 300])
def test_the_end_fits_a_screen_and_its_last_line_is_the_path(log: tuple[Terminal, io.StringIO], count: int) -> None:
    """What does not fit is counted, and stands on the page."""
    terminal, file = log
    waivers = [samples.waiver("used") for _ in range(100)] + [samples.waiver("stale") for _ in range(20)]
    cases = [samples.case(f"c{i}", signature=f"s{i}", sentence=f"said {i}") for i in range(count)]
    terminal.print_summary(msgspec.structs.replace(samples.results(*cases), waivers=waivers), Path("out"), "bundle: x")
    lines = file.getvalue().splitlines()
    assert len(lines) <= MOST_LINES + 1  # with the line of the bundle
    assert lines[-2:] == ["bundle: x", f"report: {Path('out').resolve() / 'index.html'}"]
    assert "15 more notes are in the report" in lines
    assert any("stale" in line for line in lines)
    assert any("more cause" in line for line in lines) is (count == 300)
    assert sum("coldproof replay" in line for line in lines) == min(count, 15)


class Closed(Screen):
    """A terminal that was closed, or a pipe without a reader."""

    def write(self, _: str) -> int:
        raise BrokenPipeError


def test_a_closed_terminal_is_no_failure_of_the_run(pytestconfig: pytest.Config) -> None:
    """The run continues to write its events and its report, although rich would end the process."""
    file = Screen()
    terminal = Terminal(TerminalReporter(pytestconfig, file), None)
    terminal.console.file = Closed()
    terminal.on_event("verdict", verdict())
    assert terminal.closed
    terminal.on_event("phase", {"words": "starting the engine"})
    terminal.on_event("problem", {"message": "no such model", "usage": False})
