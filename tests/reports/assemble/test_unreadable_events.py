"""A recorded event that cannot be read is a problem of the run, never an event that did not happen."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.run_events import STARTED

from coldproof.harness.event_log import EventLog
from coldproof.reports.assemble.assemble import assemble, read_events
from coldproof.reports.assemble.unreadable_events import count_missing


def written(path: Path, *lines: int) -> list[dict[str, object]]:
    """Write a log, keep only these lines, and read it."""
    log = EventLog(path)
    for words in "abcde":
        log.emit("phase", words=words)
    log.close()
    whole = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(whole[line] for line in lines))
    return read_events(path)


def test_a_whole_log_has_no_problem(tmp_path: Path) -> None:
    """Logs of two processes are complete, also if one process was killed before its last events."""
    first = written(tmp_path / "a", 0, 1, 2, 3, 4)
    second = written(tmp_path / "b", 0, 1, 2)
    assert [event["event"] for event in [*first, *second]] == ["phase"] * 8
    assert count_missing([*first, *second]) == 0


@pytest.mark.parametrize(("lines", "missing"), [((1, 2, 3, 4), 1), ((0, 4), 3), ((4,), 4)])
def test_a_gap_is_a_problem(lines: tuple[int, ...], missing: int, tmp_path: Path) -> None:
    """The content of missing events is unknown, in the middle or at the start."""
    events = written(tmp_path / "a", *lines)
    assert events[-1]["event"] == "problem"
    assert str(events[-1]["message"]).startswith(f"{missing} events of the run are missing or cannot be read")


def test_a_line_that_cannot_be_read_ends_a_run_with_an_error(tmp_path: Path) -> None:
    """The exit code is 3, even if all other events say that the run was complete."""
    path = tmp_path / "events.ndjson"
    log = EventLog(path)
    fields = {name: value for name, value in STARTED.items() if name != "event"}
    log.emit("run_started", **fields)
    log.emit("phase", words="x")
    log.emit("run_finished", complete=True)
    log.close()
    assert assemble(read_events(path)).complete
    path.write_bytes(path.read_bytes().replace(b'"words":"x"', b'"words":1' + b"0" * 30))
    results = assemble(read_events(path))
    assert (results.complete, results.exit_code) == (False, 3)
    assert "1 events of the run are missing or cannot be read" in results.problem


@pytest.mark.parametrize("number", [True, -1, "1", None, 1.5, 10**18])
def test_a_number_that_is_none_is_not_counted(number: object) -> None:
    """Invalid numbers are ignored, whatever program wrote them, and a large number costs no time."""
    counted = count_missing([{"event": "phase", "process": ["a"], "number": number}])
    assert counted == (number if number == 10**18 else 0)
