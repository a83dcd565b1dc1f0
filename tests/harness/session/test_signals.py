"""SIGTERM and SIGHUP end a run as Ctrl-C does: soon, with a report, and without leaving a process."""

from __future__ import annotations

import fcntl
import itertools
import os
import pty
import signal
import subprocess
import sys
import termios
import threading
from pathlib import Path
from typing import Any

import psutil
import pytest
from support.nightly import with_samples
from support.paths import PLUGIN_PATH, ROOT
from support.waiting import until

from coldproof.harness.schema.exit_codes import EXIT_HARNESS
from coldproof.harness.schema.results import read_results
from coldproof.harness.session import signals
from coldproof.harness.session.signals import ENDING, EndingSignals


class Started:
    """A run of the suites on the slow engine that has reached the moment at which it blocks."""

    def __init__(self, folder: Path, moment: str, *arguments: str, **how: Any) -> None:
        self.out, self.marker = folder / "out", folder / "blocked"
        given = {"COLDPROOF_SLOW_MOMENT": moment, "COLDPROOF_SLOW_BLOCKED": str(self.marker)}
        words = ["-m", "pytest", "-p", "support.slow_engine", "-p", "no:cacheprovider", "suites", "--engine", "slow"]
        words += ["--model", "none", "--requirements", "REUSE-1", "--budget", "1h", "--report-dir", str(self.out)]
        self.printed = (folder / "printed").open("w")
        streams = {"stdout": self.printed, "stderr": subprocess.STDOUT, **how}
        prepare = streams.pop("preexec_fn", lambda: None)

        def ready() -> None:
            """Handle the signals that a background job or nohup, and therefore these tests, may ignore."""
            for number in ENDING:
                signal.signal(number, signal.SIG_DFL)
            prepare()

        self.process = subprocess.Popen(
            [sys.executable, *words, *arguments],
            cwd=ROOT,
            env={**os.environ, **given, "PYTHONPATH": PLUGIN_PATH},
            preexec_fn=ready,
            **streams,
        )
        until(lambda: self.marker.exists() or self.process.poll() is not None)
        assert self.process.poll() is None, (folder / "printed").read_text()

    def left(self) -> list[psutil.Process]:
        """Return the engines and guards that still run."""
        return [p for p in psutil.process_iter(["cmdline"]) if str(self.marker) in (p.info["cmdline"] or ())]

    def ends_with_a_report(self) -> None:
        """Check report, exit code and processes of the run after a signal."""
        code = self.process.wait()
        results = read_results(self.out / "results.json")
        assert results.problem == "the run was interrupted"
        assert code == results.exit_code == EXIT_HARNESS
        assert (self.out / "index.html").is_file()
        until(lambda: not self.left())


@pytest.mark.parametrize(
    ("number", "moment"),
    [
        (signal.SIGTERM, "start"),
        pytest.param(signal.SIGTERM, "drawing", marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, "minimising", marks=pytest.mark.nightly),
        pytest.param(signal.SIGTERM, "confirmation", marks=pytest.mark.nightly),
        (signal.SIGTERM, "replaying"),
        pytest.param(signal.SIGTERM, "controls", marks=pytest.mark.nightly),
        (signal.SIGHUP, "confirmation"),
    ],
)
def test_a_signal_ends_the_run_with_a_report(tmp_path: Path, number: signal.Signals, moment: str) -> None:
    """This holds whatever the run waits for at that moment."""
    started = Started(tmp_path, moment)
    started.process.send_signal(number)
    started.ends_with_a_report()


def test_ctrl_c_does_the_same(tmp_path: Path) -> None:
    """The exit code is the same."""
    started = Started(tmp_path, "drawing")
    started.process.send_signal(signal.SIGINT)
    started.ends_with_a_report()


def test_a_failure_after_an_interrupt_keeps_the_exit_code(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The report says how the run ended, whatever pytest cannot print about it. The failure is one line."""
    monkeypatch.setenv("COLDPROOF_SLOW_FAILS", "yes")
    started = Started(tmp_path, "drawing")
    started.process.send_signal(signal.SIGINT)
    started.ends_with_a_report()
    assert "coldproof: after the report, OSError: no terminal" in (tmp_path / "printed").read_text()


@pytest.mark.parametrize("number", with_samples([signal.SIGTERM, signal.SIGINT], signal.SIGTERM))
def test_the_layers_of_a_run_end_with_it(tmp_path: Path, number: signal.Signals) -> None:
    """Each layer has its own process, which gets signals only from the run. The report has the results of all
    layers.
    """
    started = Started(tmp_path, "layers", "--layers", "exact,server")
    started.process.send_signal(number)
    started.ends_with_a_report()
    assert {layer.layer for layer in read_results(started.out / "results.json").layers} == {"exact", "server"}


def test_an_unreachable_server_does_not_keep_the_process(tmp_path: Path) -> None:
    """The thread that waits for an unreachable server is abandoned."""
    started = Started(tmp_path, "unreachable")
    started.process.send_signal(signal.SIGTERM)
    started.ends_with_a_report()


@pytest.mark.parametrize("moment", with_samples(["calibration", "confirmation"], "confirmation"))
def test_signals_that_follow_do_not_lose_the_report(tmp_path: Path, moment: str) -> None:
    """Neither the number nor the kind of the signals matters."""
    started = Started(tmp_path, moment)
    stop = threading.Event()

    def send() -> None:
        for number in itertools.cycle((signal.SIGTERM, signal.SIGINT, signal.SIGHUP)):
            if stop.wait(0.05) or started.process.poll() is not None or (started.out / "index.html").is_file():
                return
            started.process.send_signal(number)

    sender = threading.Thread(target=send)
    sender.start()
    try:
        started.ends_with_a_report()
    finally:
        stop.set()
        sender.join()


def test_parallel_workers_end_with_their_controller(tmp_path: Path) -> None:
    """Only the controller gets the signal."""
    started = Started(tmp_path, "drawing", "-n", "2")
    started.process.send_signal(signal.SIGTERM)
    started.ends_with_a_report()


def test_a_terminal_that_is_closed_does_not_lose_the_report(tmp_path: Path) -> None:
    """The system sends SIGHUP, and every later write to the terminal fails."""
    ours, theirs = pty.openpty()
    started = Started(
        tmp_path,
        "drawing",
        stdin=theirs,
        stdout=theirs,
        stderr=theirs,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(theirs, termios.TIOCSCTTY, 0),
    )
    os.close(theirs)
    os.close(ours)
    started.ends_with_a_report()


@pytest.fixture
def handlers() -> Any:
    """Yield the signal handlers of this process, and restore them afterwards."""
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    yield before
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_signal_that_the_process_was_started_to_ignore_stays_ignored(handlers: Any) -> None:
    """nohup starts a process in this way."""
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    signals = EndingSignals(lambda: None)
    signals.install()
    assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    assert signal.getsignal(signal.SIGTERM) == signals.handle
    signals.restore()
    assert signal.getsignal(signal.SIGTERM) is handlers[signal.SIGTERM]


def test_a_lost_interrupt_is_repeated(handlers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """An exception in a destructor is printed and dropped."""
    monkeypatch.setattr("coldproof.harness.session.signals.REPEAT_SECONDS", 0.2)
    signals = EndingSignals(lambda: None)
    signals.install()
    with pytest.raises(KeyboardInterrupt):
        signals.handle(signal.SIGTERM, None)
    with pytest.raises(KeyboardInterrupt):
        threading.Event().wait()
    signals.finishing()
    signals.handle(signal.SIGTERM, None)
    for thread in threading.enumerate():
        if thread.name == "ending":
            thread.join()  # after it, nothing interrupts any more


def test_a_signal_while_the_report_is_written_is_ignored(handlers: Any) -> None:
    """The run was already over."""
    signals = EndingSignals(lambda: pytest.fail("the engines were stopped already"))
    signals.finishing()
    signals.handle(signal.SIGTERM, None)
    assert signals.received is None


CLOSED = 2**20  # no file has so large a number here


def test_a_file_that_another_thread_closes_does_not_keep_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    """Output for the terminal goes to the null device whatever else is closed at that moment."""
    ours, theirs = pty.openpty()
    monkeypatch.setattr(signals, "open_files", lambda: [CLOSED, theirs])
    signals.leave_terminals({os.fstat(theirs).st_rdev})
    os.close(ours)
    assert os.write(theirs, b"after the terminal was closed") > 0
    os.close(theirs)
