"""A soak: rounds of examples until its time is up, and what harness and engines came to hold meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest
from support import report_samples as samples
from support.paths import ROOT

from coldproof.adapters.common.process import EngineProcess
from coldproof.harness.event_log import EventLog
from coldproof.harness.session.soak import HARNESS, ResourceMonitor
from coldproof.reports.assemble.over_time import USAGE_POINTS, format_amount, growth_text, growths
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.run_report.run_report import render_html
from coldproof.reports.schema.results import Growth, UsagePoint

MIB = 2**20


def looks(
    values: list[float], *, every: float = 30.0, process: str = "engine", files: int = 50
) -> list[dict[str, Any]]:
    """Events of looks at one process that holds so many MiB."""
    return [
        {"event": "usage", "at": i * every, "usages": [{"process": process, "memory": int(v * MIB), "files": files}]}
        for i, v in enumerate(values)
    ]


def memory(values: list[float], **how: Any) -> Growth:
    """What is found about its memory."""
    return next(one for one in growths(looks(values, **how), 0.0) if one.what == "memory")


def test_a_level_line_is_flat() -> None:
    """Noise of a few MiB is no growth, nor is a burst that ends."""
    level = [500.0 + 5 * (i % 3) for i in range(60)]
    assert memory(level).grows is False
    assert memory([*level[:50], *[900.0] * 5, *level[:5]]).grows is False


def test_filling_caches_are_no_growth() -> None:
    """What grows only in the first quarter of a process's life is left out."""
    assert memory([*[100.0 + 20 * i for i in range(15)], *[400.0] * 45]).grows is False


def test_a_leak_is_reported_with_its_size() -> None:
    """Half a MiB a look, three requests a look: both are in the words."""
    events = [*looks([400.0 + 0.5 * i for i in range(120)])]
    events += [{"event": "example", "at": 30.0 * i, "requests": 3} for i in range(120)]
    found = next(one for one in growths(events, 0.0) if one.what == "memory")
    assert found.grows is True
    assert found.requests == 180
    assert found.late - found.early == 30 * MIB
    assert growth_text(found) == "GROWS: 422 MiB to 452 MiB in 30\u202fmin 00\u202fs, 167 MiB for 1,000 requests"


def test_files_that_are_never_closed_are_reported() -> None:
    """One more every look."""
    events = [look for i in range(60) for look in [{**looks([1.0], files=20 + i)[0], "at": 30.0 * i}]]
    files = next(one for one in growths(events, 0.0) if one.what == "files")
    assert files.grows is True
    assert format_amount(files, files.late) == "72 open files"


@pytest.mark.parametrize("values", [[100.0] * 10, [100.0 + 50 * i for i in range(23)]])
def test_too_few_looks_say_nothing(values: list[float]) -> None:
    """Neither flat nor growing: it is said that nobody can tell."""
    found = memory(values)
    assert found.grows is None
    assert "too briefly" in growth_text(found)


def test_an_engine_of_a_few_looks_is_left_out() -> None:
    """Counterexamples are confirmed on engines that live for seconds; the run's own process always has its line."""
    events = looks([300.0] * 10, process=HARNESS) + looks([100.0] * 10)
    assert {one.process for one in growths(events, 0.0)} == {HARNESS}


def test_a_short_life_says_nothing() -> None:
    """Many looks within a minute are no soak."""
    assert memory([100.0 + i for i in range(60)], every=1.0).grows is None


def test_each_process_is_judged_by_itself() -> None:
    """A leak of the harness is not an engine's."""
    events = looks([300.0] * 60) + looks([100.0 + i for i in range(60)], process=HARNESS)
    assert {(one.process, one.grows) for one in growths(events, 0.0) if one.what == "memory"} == {
        ("engine", False),
        (HARNESS, True),
    }


def test_a_picture_has_room_for_all_points() -> None:
    """However long the soak was; the last look is kept."""
    points = memory([100.0] * 1000).points
    assert len(points) <= USAGE_POINTS
    assert points[-1].at == 999 * 30.0


def test_a_look_sees_this_process_and_its_engines(tmp_path: Path) -> None:
    """Memory and open files of both; an engine that has ended is left out."""
    process = EngineProcess(
        [sys.executable, "-c", "import time; held = open('/dev/null'); print('up', flush=True); time.sleep(3600)"],
        dict(os.environ),
        tmp_path / "engine-01-tested.log",
    )
    watch = ResourceMonitor(EventLog(tmp_path / "events.ndjson"), lambda: [process], seconds=1)
    try:
        while "up" not in process.log.read_text():
            assert process.running()
        found = {usage.process: usage for usage in watch.sample()}
    finally:
        process.stop()
    assert found.keys() == {HARNESS, "engine-01-tested"}
    assert all(usage.memory > MIB and usage.files >= 3 for usage in found.values())
    assert [usage.process for usage in watch.sample()] == [HARNESS]


def test_looks_are_written_down(tmp_path: Path) -> None:
    """Each is an event of the run; after `stop` there are no more."""
    log = EventLog(tmp_path / "events.ndjson")
    watch = ResourceMonitor(log, list, seconds=1)
    watch.interval = 0.01
    watch.start()
    while not log.path.read_bytes():
        assert watch.thread.is_alive()
    watch.stop()
    written = log.path.read_bytes()
    assert msgspec.json.decode(written.splitlines()[0])["usages"][0]["process"] == HARNESS
    assert not watch.thread.is_alive()
    watch.stop()


def soaked(*, grows: bool | None) -> Growth:
    """One finding."""
    points = [UsagePoint(at=float(i), value=MIB * (100 + i)) for i in range(10)]
    return Growth(
        process="engine-01-tested", what="memory", early=MIB, late=40 * MIB, seconds=60.0, grows=grows, points=points
    )


def test_reports_say_what_grew() -> None:
    """The page draws it, the summary lists it, and a run that was no soak has neither."""
    results = msgspec.structs.replace(samples.results(), growth=[soaked(grows=True)])
    assert "GROWS: 1 MiB to 40 MiB" in summary_markdown(results)
    assert "GROWS: 1 MiB to 40 MiB" in render_html(results)
    assert "Resource usage" not in summary_markdown(samples.results())
    assert "Resource usage" not in render_html(samples.results())


def test_parallel_workers_are_refused(tmp_path: Path) -> None:
    """One line: several runs in one report could not be told apart."""
    command = [sys.executable, "-m", "pytest", "suites", "--profile", "soak", "-n", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 4
    assert "remove -n" in ended.stderr
