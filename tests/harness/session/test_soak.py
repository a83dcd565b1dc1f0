"""A soak: rounds of examples until its time is over, and the resource usage of harness and engines."""

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
from coldproof.harness.schema.results import Growth, UsagePoint
from coldproof.harness.session.soak import HARNESS, ResourceMonitor
from coldproof.reports.assemble.over_time import USAGE_POINTS, format_amount, growth_text, growths
from coldproof.reports.exports.markdown_summary import summary_markdown
from coldproof.reports.run_report.run_report import render_html

MIB = 2**20


def usage_events(
    values: list[float], *, every: float = 30.0, process: str = "engine", files: int = 50
) -> list[dict[str, Any]]:
    """Return usage events of one process that holds these numbers of MiB."""
    return [
        {"event": "usage", "at": i * every, "usages": [{"process": process, "memory": int(v * MIB), "files": files}]}
        for i, v in enumerate(values)
    ]


def memory(values: list[float], **how: Any) -> Growth:
    """Return the growth of the process's memory."""
    return next(one for one in growths(usage_events(values, **how), 0.0) if one.what == "memory")


def test_a_level_line_is_flat() -> None:
    """Neither noise of a few MiB nor a burst that ends is growth."""
    level = [500.0 + 5 * (i % 3) for i in range(60)]
    assert memory(level).grows is False
    assert memory([*level[:50], *[900.0] * 5, *level[:5]]).grows is False


def test_filling_caches_are_no_growth() -> None:
    """Growth in the first quarter of a process's life is ignored."""
    assert memory([*[100.0 + 20 * i for i in range(15)], *[400.0] * 45]).grows is False


def test_a_leak_is_reported_with_its_size() -> None:
    """The text has the growth per sample and per request."""
    events = [*usage_events([400.0 + 0.5 * i for i in range(120)])]
    events += [{"event": "example", "at": 30.0 * i, "requests": 3} for i in range(120)]
    found = next(one for one in growths(events, 0.0) if one.what == "memory")
    assert found.grows is True
    assert found.requests == 180
    assert found.late - found.early == 30 * MIB
    assert growth_text(found) == "GROWS: 422 MiB to 452 MiB in 30\u202fmin 00\u202fs, 167 MiB for 1,000 requests"


def test_files_that_are_never_closed_are_reported() -> None:
    """One more file is open at every sample."""
    events = [usage for i in range(60) for usage in [{**usage_events([1.0], files=20 + i)[0], "at": 30.0 * i}]]
    files = next(one for one in growths(events, 0.0) if one.what == "files")
    assert files.grows is True
    assert format_amount(files, files.late) == "72 open files"


@pytest.mark.parametrize("values", [[100.0] * 10, [100.0 + 50 * i for i in range(23)]])
def test_too_few_samples_give_no_result(values: list[float]) -> None:
    """The result is neither flat nor growing, and the text says so."""
    found = memory(values)
    assert found.grows is None
    assert "too briefly" in growth_text(found)


def test_an_engine_with_few_samples_is_ignored() -> None:
    """Counterexamples are confirmed on engines that run for seconds. The run's own process is always listed."""
    events = usage_events([300.0] * 10, process=HARNESS) + usage_events([100.0] * 10)
    assert {one.process for one in growths(events, 0.0)} == {HARNESS}


def test_a_short_run_gives_no_result() -> None:
    """Many samples within a minute are not enough."""
    assert memory([100.0 + i for i in range(60)], every=1.0).grows is None


def test_each_process_is_judged_by_itself() -> None:
    """A leak of the harness is not a leak of an engine."""
    events = usage_events([300.0] * 60) + usage_events([100.0 + i for i in range(60)], process=HARNESS)
    assert {(one.process, one.grows) for one in growths(events, 0.0) if one.what == "memory"} == {
        ("engine", False),
        (HARNESS, True),
    }


def test_a_picture_has_room_for_all_points() -> None:
    """The last sample is kept, however long the soak was."""
    points = memory([100.0] * 1000).points
    assert len(points) <= USAGE_POINTS
    assert points[-1].at == 999 * 30.0


def test_a_sample_has_this_process_and_its_engines(tmp_path: Path) -> None:
    """The sample has memory and open files of both; an engine that has ended is ignored."""
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


def test_samples_are_recorded(tmp_path: Path) -> None:
    """Each sample is an event of the run, and there are none after `stop`."""
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
    """Return one finding about growth."""
    points = [UsagePoint(at=float(i), value=MIB * (100 + i)) for i in range(10)]
    return Growth(
        process="engine-01-tested", what="memory", early=MIB, late=40 * MIB, seconds=60.0, grows=grows, points=points
    )


def test_reports_say_what_grew() -> None:
    """The page and the summary show it, and a run without a soak does not."""
    results = msgspec.structs.replace(samples.results(), growth=[soaked(grows=True)])
    assert "GROWS: 1 MiB to 40 MiB" in summary_markdown(results)
    assert "GROWS: 1 MiB to 40 MiB" in render_html(results)
    assert "Resource usage" not in summary_markdown(samples.results())
    assert "Resource usage" not in render_html(samples.results())


def test_parallel_workers_are_refused(tmp_path: Path) -> None:
    """The error is one line, because several runs in one report could not be distinguished."""
    command = [sys.executable, "-m", "pytest", "suites", "--profile", "soak", "-n", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert ended.returncode == 4
    assert "remove -n" in ended.stderr
