"""Events are written as whole lines whatever else is written, and are shown literally: text of an engine is never
markup.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from _pytest.terminal import TerminalReporter
from support.paths import ROOT
from support.run_events import HOSTILE, verdict

from coldproof.harness.event_log import EventLog
from coldproof.harness.schema.results import SelfTestRow
from coldproof.harness.schema.verdict import Verdict
from coldproof.harness.session.terminal.terminal import Terminal
from coldproof.reports.assemble.assemble import read_events

LONG = "x" * 20_000  # far beyond a pipe's or a page's size
WRITER = """
import sys
from pathlib import Path
from coldproof.harness.event_log import EventLog
log = EventLog(Path(sys.argv[1]))
for i in range(50):
    log.emit("example", writer=sys.argv[2], i=i, text="x" * 20000)
"""


@pytest.fixture
def shown(pytestconfig: pytest.Config) -> tuple[Terminal, io.StringIO]:
    """Return a terminal that writes into a string, as pytest's does into a log."""
    file = io.StringIO()
    return Terminal(TerminalReporter(pytestconfig, file), None), file


def test_an_event_is_one_line_with_its_time(tmp_path: Path) -> None:
    """Structs and enums are written as plain data, and a line feed in a text does not break the line."""
    log = EventLog(tmp_path / "events.ndjson")
    log.emit("selftest", rows=[SelfTestRow(planted="a\nb", caught=True, said="")], verdict=Verdict.ERROR)
    log.close()
    (line,) = (tmp_path / "events.ndjson").read_bytes().splitlines()
    event = json.loads(line)
    assert event.pop("at") > 1_700_000_000
    assert event.pop("process")
    assert event == {
        "number": 0,
        "event": "selftest",
        "rows": [{"planted": "a\nb", "caught": True, "said": ""}],
        "verdict": "ERROR",
    }


def test_events_are_on_disk_at_once(tmp_path: Path) -> None:
    """A run that is killed has lost nothing that came before, without a close or flush."""
    log = EventLog(tmp_path / "events.ndjson")
    log.emit("phase", words="one")
    assert [e["words"] for e in read_events(tmp_path / "events.ndjson")] == ["one"]
    log.close()


def test_an_existing_log_is_extended(tmp_path: Path) -> None:
    """A worker must not erase what the controlling process wrote."""
    for words in ("one", "two"):
        log = EventLog(tmp_path / "events.ndjson")
        log.emit("phase", words=words)
        log.close()
    assert [e["words"] for e in read_events(tmp_path / "events.ndjson")] == ["one", "two"]


def test_lines_of_many_threads_stay_whole(tmp_path: Path) -> None:
    """Each line parses, and none is missing."""
    log = EventLog(tmp_path / "events.ndjson")

    def write(writer: int) -> None:
        for i in range(50):
            log.emit("example", writer=writer, i=i, text=LONG)

    threads = [threading.Thread(target=write, args=(writer,)) for writer in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert_whole(tmp_path / "events.ndjson", {str(writer) for writer in range(6)})


def test_lines_of_many_processes_stay_whole(tmp_path: Path) -> None:
    """The workers of pytest-xdist write in this way."""
    path = tmp_path / "events.ndjson"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(path), name], cwd=ROOT) for name in "ab"]
    assert [writer.wait() for writer in writers] == [0, 0]
    assert_whole(path, {"a", "b"})


def assert_whole(path: Path, writers: set[str]) -> None:
    """Assert that every line is one event, and that each writer has fifty events in its own order."""
    events = [json.loads(line) for line in path.read_bytes().splitlines()]
    assert all(event["text"] == LONG for event in events)
    for writer in writers:
        assert [e["i"] for e in events if str(e["writer"]) == writer] == list(range(50))
    assert len(events) == 50 * len(writers)


def test_subscribers_see_every_event_after_it_was_written(tmp_path: Path) -> None:
    """The fields are those that were given, and not their encoding."""
    log, seen = EventLog(tmp_path / "events.ndjson"), list[tuple[str, dict[str, object], int]]()
    for _ in range(2):
        log.subscribe(lambda kind, fields: seen.append((kind, fields, len(read_events(log.path)))))
    log.emit("verdict", verdict=Verdict.ERROR)
    log.emit("phase", words="x")
    log.close()
    assert seen == [("verdict", {"verdict": Verdict.ERROR}, 1)] * 2 + [("phase", {"words": "x"}, 2)] * 2


@pytest.mark.parametrize("path", [".", "no/such/folder/events.ndjson"])
def test_a_log_that_cannot_be_written_is_an_error_at_once(tmp_path: Path, path: str) -> None:
    """The error comes before any engine is started."""
    with pytest.raises(OSError, match=r"Is a directory|No such file"):
        EventLog(tmp_path / path)


def test_a_half_written_line_is_left_out(tmp_path: Path) -> None:
    """The run was killed while it wrote the line; earlier lines still count."""
    path = tmp_path / "events.ndjson"
    path.write_bytes(b'{"event": "phase", "at": 1.0, "words": "one"}\n{"event": "pha')
    assert [e["words"] for e in read_events(path)] == ["one"]


def test_a_verdict_is_a_line_with_progress_and_an_estimate(shown: tuple[Terminal, io.StringIO]) -> None:
    """After one of four verdicts in 100 s, about 300 s, five minutes, are left."""
    terminal, file = shown
    terminal.began -= 100
    terminal.on_event("verdict", verdict())
    assert file.getvalue() == "[1/4] LORA-1 CONFORMS reload: 8 examples, 3 s; about 5 min left\n"


def test_the_last_verdict_has_no_estimate(shown: tuple[Terminal, io.StringIO]) -> None:
    """A verdict beyond the announced number gives no estimate either."""
    terminal, file = shown
    terminal.began -= 100
    for _ in range(2):
        terminal.on_event("verdict", verdict(of=1))
    assert "left" not in file.getvalue()


UNEXPLAINED = (Verdict.CONFORMS, Verdict.KNOWN_ISSUE)


@pytest.mark.parametrize("outcome", Verdict)
def test_a_verdict_that_is_no_pass_gives_its_reason(shown: tuple[Terminal, io.StringIO], outcome: Verdict) -> None:
    """A pass needs no reason; the report has that of a known issue."""
    terminal, file = shown
    terminal.on_event("verdict", verdict(outcome))
    assert outcome.value in file.getvalue()
    assert ("because" in file.getvalue()) is (outcome not in UNEXPLAINED)


def test_hostile_text_is_shown_literally(shown: tuple[Terminal, io.StringIO]) -> None:
    """Markup stays text in every kind of event that has text of an engine or a server."""
    terminal, file = shown
    terminal.reporter.config.option.verbose = 1  # with -v, the log of an engine that ended is shown, too
    terminal.on_event("verdict", verdict(Verdict.VIOLATED, reason=HOSTILE, title=HOSTILE))
    terminal.on_event("engine_lost", {"log_tail": HOSTILE})
    terminal.on_event("phase", {"words": HOSTILE})
    calibration = SimpleNamespace(rule=HOSTILE, notes=[HOSTILE])
    terminal.on_event("calibration", {"calibration": calibration})
    assert file.getvalue().count("[red]not red[/red] [/nope]") == 6


def test_other_events_are_not_shown(shown: tuple[Terminal, io.StringIO]) -> None:
    """A log gets no line for each example, and the terminal ignores unknown events."""
    terminal, file = shown
    terminal.on_event("trial", {"requirement": "LORA-1", "title": "reload", "cell": "default"})
    terminal.on_event("example", {})
    terminal.on_event("never heard of", {"x": 1})
    assert file.getvalue() == ""
