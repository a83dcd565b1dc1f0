"""A node runs one unit, returns every file, and leaves nothing behind. This needs no Ray."""

from __future__ import annotations

import _thread
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from support import report_samples
from support.fleets import GO, SOURCES, at_gate, fake_python, store_in, units
from support.waiting import until

from coldproof import IMPORT_ROOT
from coldproof.harness.fleet import node
from coldproof.harness.fleet.fleet import copy_sources
from coldproof.harness.fleet.node import Ended, run_here
from coldproof.harness.release.run.manifest import manifest_differences, read_manifest
from coldproof.harness.release.run.sources import sources_digest
from coldproof.harness.schema.results import encode
from coldproof.harness.workload.steps import Burst, Prompt, Request, Segment, Workload

UNIT = units()[0]


def run(place: Path, *, python: str = "", waivers: str | None = None) -> Ended:
    """Run the unit with a Python that runs no suites, or with another one."""
    (place / "gate").mkdir(exist_ok=True)
    python = python or str(fake_python(place))
    folder = f"out/units/{UNIT.id}"
    unit = msgspec.structs.replace(UNIT, waivers=None if waivers is None else Path("waivers.toml"))
    return run_here(Path(IMPORT_ROOT), unit.words(folder), waivers, folder, python)


def test_a_runs_folder_arrives_as_it_was_written(tmp_path: Path) -> None:
    """All bytes are equal, so the seal of a bundle is valid."""
    (tmp_path / "gate").mkdir()
    (tmp_path / "gate" / GO).write_text("")
    ended = run(tmp_path)
    assert ended.code == 0
    assert ended.seconds > 0
    store = store_in(tmp_path / "fleet")
    assert store.keep(UNIT.id, UNIT.digest(SOURCES), ended).problem == ""
    folder = store.report(UNIT.id)
    assert list(manifest_differences(folder, read_manifest(folder))) == []


@pytest.fixture
def interruptible() -> Iterator[None]:
    """Let interrupts arrive: a process that a shell started in the background ignores them."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
def test_a_run_ends_with_its_task(tmp_path: Path) -> None:
    """If Ray cancels the task, which interrupts it, the run ends and its folder is removed."""
    found: list[tuple[psutil.Process, Path]] = []

    def interrupt() -> None:
        until(lambda: at_gate(tmp_path))
        (waiting,) = at_gate(tmp_path)
        found.append((waiting, Path(waiting.cwd())))
        _thread.interrupt_main()  # sets a flag only, as Ray does

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path)
    thread.join()
    ((waiting, folder),) = found
    assert not waiting.is_running()
    assert not folder.exists()
    assert signal.getsignal(signal.SIGINT) is not signal.SIG_IGN


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
    sent = copy_sources(tmp_path / "sent")
    assert sources_digest(sent / "coldproof") == sources_digest()
    workload = Workload((Burst(requests=(Request(prompt=Prompt((Segment("stem", 40),)), max_tokens=4),)),))
    case = report_samples.case(workload=msgspec.to_builtins(workload), recipes={}, contents={}, failing_request=0)
    (tmp_path / "case.json").write_bytes(encode(case))
    command = [sys.executable, "-c", RENDER, str(tmp_path / "case.json")]
    ended = subprocess.run(command, cwd=sent, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr


def test_a_run_that_cannot_begin_gives_the_reason(tmp_path: Path) -> None:
    """A missing Python is a failure of the run, and no verdict."""
    ended = run(tmp_path, python="/no/such/python")
    assert ended.code != 0
    assert "/no/such/python" in ended.log


def test_known_issues_are_a_file_of_the_run(tmp_path: Path) -> None:
    """The run gets the text that was sent, under a name that does not depend on the node."""
    script = tmp_path / "shows"
    script.write_text("#!/bin/sh\necho $*\ncat known_issues.toml\n")
    script.chmod(0o755)
    ended = run(tmp_path, python=str(script), waivers="# mine\n")
    assert f"--report-dir out/units/{UNIT.id} --known-issues known_issues.toml " in ended.log
    assert ended.log.endswith("\n# mine\n")


def test_an_engine_does_not_inherit_the_ray_that_started_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine may use Ray itself. It must know which GPU is its own."""
    monkeypatch.setenv("RAY_JOB_ID", "7")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monkeypatch.setenv("PYTHONPATH", "/mine")
    found = node.environment(tmp_path)
    assert "RAY_JOB_ID" not in found
    assert found["CUDA_VISIBLE_DEVICES"] == "3"
    assert found["PYTHONPATH"] == f"{tmp_path}:/mine"
