"""A node runs one unit, sends whole lines and every file, and leaves nothing behind. This needs no Ray."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import msgspec
import psutil
import pytest
from support import report_samples
from support.fleets import GO, at_gate, fake_python, units
from support.waiting import until

from coldproof import IMPORT_ROOT
from coldproof.harness.fleet import node
from coldproof.harness.fleet.fleet import copy_sources
from coldproof.harness.fleet.node import EventLines, Order, RunEnded, RunStarted, run_order
from coldproof.harness.fleet.store import Store
from coldproof.harness.release.run.manifest import manifest_differences, read_manifest
from coldproof.harness.release.run.sources import sources_digest
from coldproof.harness.schema.results import encode
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Workload

UNIT = units()[0]


def order(place: Path, **changes: str) -> Order:
    """Return the order for the unit, with a Python that runs no suites."""
    (place / "gate").mkdir()
    fields = {
        "waivers": "",
        "folder": f"out/units/{UNIT.id}",
        "root": str(IMPORT_ROOT),
        "python": str(fake_python(place)),
    }
    return Order(unit=UNIT.id, words=tuple(UNIT.words()), **{**fields, **changes})


def test_a_runs_folder_arrives_as_it_was_written(tmp_path: Path) -> None:
    """All bytes are equal, so the seal of a bundle is valid."""
    given = order(tmp_path)
    (tmp_path / "gate" / GO).write_text("")
    messages = list(run_order(given, "n1"))
    assert messages[0] == RunStarted("n1")
    assert all(isinstance(message, EventLines) and message.lines.endswith(b"\n") for message in messages[1:-1])
    ended = messages[-1]
    assert isinstance(ended, RunEnded)
    assert ended.code == 0
    store = Store(tmp_path / "fleet")
    store.begin(UNIT.id)
    for message in messages[1:-1]:
        assert isinstance(message, EventLines)
        store.add(UNIT.id, message.lines)
    assert store.end(UNIT.id, ended) == ""
    folder = store.report(UNIT.id)
    assert list(manifest_differences(folder, read_manifest(folder))) == []


def test_events_come_while_the_run_goes_on_and_it_ends_with_its_task(tmp_path: Path) -> None:
    """If the task is dropped, as Ray does with a cancelled one, the run ends and its folder is removed."""
    going = run_order(order(tmp_path), "n1")
    assert isinstance(next(going), RunStarted)
    assert isinstance(next(going), EventLines)
    (waiting,) = wait_for(tmp_path)
    folder = Path(waiting.cwd())
    assert folder.is_dir()
    going.close()
    assert not waiting.is_running()
    assert not folder.exists()


RENDER = """
import sys
from pathlib import Path
from coldproof.harness.case.load import load_case
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.case.bug_report import bug_report
case, _ = load_case(Path(sys.argv[1]))
compile(reproducer(case), "script", "exec")
assert bug_report(case, statement="", environment={})
"""


def test_a_node_with_nothing_but_what_it_is_sent_writes_reproducers(tmp_path: Path) -> None:
    """It has the templates of every file that is saved for a violation, and the digest of the checkout."""
    sent = copy_sources([], tmp_path / "sent")
    assert sources_digest(sent / "coldproof") == sources_digest()
    workload = Workload((Burst(requests=(Request(prompt=Prompt((Segment("stem", 40),)), max_tokens=4),)),))
    case = report_samples.case(workload=msgspec.to_builtins(workload), recipes={}, contents={}, failing_request=0)
    (tmp_path / "case.json").write_bytes(encode(case))
    command = [sys.executable, "-c", RENDER, str(tmp_path / "case.json")]
    ended = subprocess.run(command, cwd=sent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def wait_for(place: Path) -> list[psutil.Process]:
    """Return the run that waits at its gate."""
    until(lambda: at_gate(place))
    return at_gate(place)


def test_a_run_that_cannot_begin_gives_the_reason(tmp_path: Path) -> None:
    """A missing Python is a failure of the task, and no verdict."""
    (ended,) = [m for m in run_order(order(tmp_path, python="/no/such/python"), "n1") if isinstance(m, RunEnded)]
    assert ended.code != 0
    assert "/no/such/python" in ended.log


def test_lines_are_whole_however_they_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Half a line waits for its other half, and a line that exceeds the message size is sent nevertheless."""
    monkeypatch.setattr(node, "MAX_BYTES", 8)
    monkeypatch.setattr(node, "POLL_SECONDS", 0.01)
    path = tmp_path / "events"

    class Writer:
        ended = False

        def poll(self) -> int | None:
            return 0 if self.ended else None

    writer = Writer()

    def write() -> None:
        for part in (b"one\ntw", b"o\n", b"a line that is rather long\n", b"cut o"):
            with path.open("ab") as file:
                file.write(part)
        writer.ended = True

    thread = threading.Thread(target=write)
    thread.start()
    found = list(node.follow_file(path, writer))  # type: ignore[arg-type]
    thread.join()
    assert b"".join(found) == b"one\ntwo\na line that is rather long\n"
    assert all(part.endswith(b"\n") for part in found)


def test_an_engine_does_not_inherit_the_ray_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may use Ray itself. It must know which GPU is its own."""
    monkeypatch.setenv("RAY_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = node.environment(tmp_path)
    assert "RAY_JOB_ID" not in found
    assert found["CUDA_VISIBLE_DEVICES"] == "3"
    assert found["PYTHONPATH"] == f"{tmp_path}:/mine"
