"""A report folder has one run at a time, a run reports only its own results, and a full disk is exit code 3."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from support.fake_server import serving
from support.paths import ROOT

from coldproof import IMPORT_ROOT
from coldproof.harness.event_log import EventLog
from coldproof.harness.schema.exit_codes import EXIT_HARNESS, EXIT_USAGE
from coldproof.harness.schema.results import read_results
from coldproof.reports.assemble.assemble import events_of, read_events

CASE = ROOT / "findings/sglang/a-session-keeps-its-kv-over-adapters/case.json"  # of an attached server
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(IMPORT_ROOT)}


class Gate:
    """A server that answers only after it is opened, and reports that a request has arrived."""

    def __init__(self) -> None:
        self.arrived, self.open = threading.Event(), threading.Event()
        self.url = ""

    def wait_for(self, process: subprocess.Popen[str]) -> None:
        """Wait until the process has sent a request. Fail if it ends before."""
        while not self.arrived.wait(0.5):
            assert process.poll() is None, process.communicate()[0]


@pytest.fixture
def gate() -> Iterator[Gate]:
    """Yield a gate on a free port."""
    made = Gate()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            made.arrived.set()
            made.open.wait()
            self.send_error(404)

        def do_POST(self) -> None:
            self.do_GET()

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        made.url = f"http://127.0.0.1:{server.server_address[1]}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield made
        finally:
            made.open.set()
            server.shutdown()
            thread.join()


def started(url: str, report: Path, *words: str, **how: Any) -> subprocess.Popen[str]:
    """Start a run of the suites against a server."""
    command = [sys.executable, "-m", "pytest", "suites", "-p", "no:cacheprovider", "--engine-url", url, *words]
    command += ["--report-dir", str(report)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    return subprocess.Popen(command, cwd=ROOT, env=ENVIRONMENT, **streams, **how)


def clear_line(said: str) -> str:
    """Return the only line with the error."""
    assert "Traceback" not in said
    (line,) = [line for line in said.splitlines() if "coldproof: " in line]
    return line


def test_a_second_run_is_refused_and_the_first_one_reports_itself(tmp_path: Path, gate: Gate) -> None:
    """Two runs in one checkout have the same default folder."""
    report = tmp_path / "report"
    first = started(gate.url, report, "--requirements", "SALT-1")
    gate.wait_for(first)
    second = started(gate.url, report, "--requirements", "REUSE-1")
    said = second.communicate()[0]
    assert second.returncode == EXIT_USAGE
    assert "another run is writing into this folder" in clear_line(said)
    gate.open.set()
    first.communicate()
    results = read_results(report / "results.json")
    assert first.returncode == results.exit_code == EXIT_HARNESS
    assert [one.id for one in results.requirements] == ["SALT-1"]
    assert {event["id"] for event in read_events(report / "events.ndjson") if event["event"] == "requirement"} == {
        "SALT-1"
    }


def test_a_run_whose_folder_was_replaced_reports_nothing_of_it(tmp_path: Path, gate: Gate) -> None:
    """The new content belongs to another program and is not changed."""
    report = tmp_path / "report"
    first = started(gate.url, report, "--requirements", "SALT-1")
    gate.wait_for(first)
    report.rename(tmp_path / "moved")
    report.mkdir()
    (report / "events.ndjson").write_text("mine")
    gate.open.set()
    said = first.communicate()[0]
    assert first.returncode == EXIT_HARNESS
    assert "the report folder was moved or deleted" in said
    assert [(path.name, path.read_text()) for path in report.iterdir()] == [("events.ndjson", "mine")]


def test_a_full_disk_is_one_line_and_no_violation(tmp_path: Path) -> None:
    """The events reach the limit in the second requirement, and the verdict of the first one is printed."""

    def limit() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (FULL, FULL))

    with serving() as fake:
        words = ("--requirements", "LORA-6,CHAT-1", "--budget", "20s")
        run = started(fake.url, tmp_path / "report", *words, preexec_fn=limit)
        said = run.communicate()[0]
    assert run.returncode == EXIT_HARNESS, said
    assert "Traceback" not in said
    assert "INTERNALERROR" not in said
    lines = said.splitlines()
    assert [line for line in lines if "cannot write the report: File too large" in line]
    assert [line for line in lines if line.startswith("LORA-6 UNSUPPORTED: ")]
    assert (tmp_path / "report" / "events.ndjson").stat().st_size <= FULL


@pytest.mark.nightly
def test_the_printed_replay_leaves_its_report_as_it_is(tmp_path: Path) -> None:
    """The printed command has no --report-dir."""
    cases = tmp_path / "report" / "cases"
    cases.mkdir(parents=True)
    shutil.copyfile(CASE, cases / "A.json")
    (cases / "A.py").write_text("reproducer")
    before = {path.name: path.read_bytes() for path in cases.iterdir()}
    words = [sys.executable, "-m", "coldproof", "replay", str(cases / "A.json"), "--engine-url", "http://127.0.0.1:9"]
    ended = subprocess.run(words, cwd=tmp_path, env=ENVIRONMENT, capture_output=True, text=True, check=False)
    assert ended.returncode == EXIT_HARNESS, ended.stdout + ended.stderr
    assert {path.name: path.read_bytes() for path in cases.iterdir() if path.is_file()} == before
    assert {path.name for path in cases.iterdir() if path.is_dir()} == {"A-replay"}
    assert [path.name for path in (tmp_path / "report").iterdir()] == ["cases"]


FULL = 60_000  # bytes; the start of a run takes a third of it, and each example adds some kilobytes


def test_an_event_that_cannot_be_written_is_not_lost(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The run is informed once and continues without writing, because half a line would damage the next one."""
    log = EventLog(tmp_path / "events.ndjson")
    failures: list[str] = []
    log.on_failure = lambda: failures.append("full")
    log.emit("phase", words="one")

    def full(*_: object) -> int:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("coldproof.harness.event_log.os.write", full)
        log.emit("phase", words="two")
    log.emit("phase", words="three")
    assert failures == ["full"]
    assert log.failure is not None
    assert [event["words"] for event in read_events(log.path)] == ["one"]
    assert [event["words"] for event in events_of(log.unwritten)] == ["two", "three"]
    with contextlib.closing(log):
        assert log.in_place()
