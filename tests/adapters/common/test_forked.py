"""Processes that are forked from a process which has already imported what they need."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest
from support.waiting import until

from coldproof import IMPORT_ROOT
from coldproof.adapters.common import forked
from coldproof.adapters.common.forked import (
    VARIABLE,
    ForkedProcess,
    ForkServerError,
    fork_server,
    import_ahead,
    stop_imports,
)
from coldproof.adapters.common.process import EngineProcess, Forking

JOBS = """
import os, sys, time

IMPORTED_IN = os.getpid()

def preload():
    print("preloaded", flush=True)

def tell(words):
    print(*words, os.environ["GIVEN"], os.getcwd(), IMPORTED_IN != os.getpid(), flush=True)
    return 7

def fail(words):
    raise RuntimeError("it fails")

def leave(words):
    sys.exit("it leaves")

def stay(words):
    child = os.fork()
    print("child", child or os.getpid(), flush=True)
    time.sleep(600)
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Yield the address of a fork server that has imported JOBS."""
    folder = tmp_path_factory.mktemp("jobs")
    (folder / "forked_jobs.py").write_text(JOBS)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join((str(folder), str(IMPORT_ROOT))))
        patch.delenv(VARIABLE, raising=False)
        yield fork_server("forked_jobs:preload", "no_such_module")


def test_threads_may_wait_for_a_process_at_the_same_time(address: str, tmp_path: Path) -> None:
    """Several requests that lose their connection check the process at the same time."""
    for _ in range(20):
        process = start(address, "tell", tmp_path, "some", "words")
        with ThreadPoolExecutor(8) as pool:
            codes = list(pool.map(process.wait, [None] * 8))
        assert codes == [7] * 8


def start(address: str, function: str, folder: Path, *words: str, guarded: bool = False) -> ForkedProcess:
    """Start a forked process with its output in `out`."""
    with (folder / "out").open("wb") as output:
        environment = {"GIVEN": "yes", "PYTHONPATH": str(IMPORT_ROOT)}
        return ForkedProcess(
            address, f"forked_jobs:{function}", words, environment=environment, output=output, guarded=guarded
        )


@pytest.mark.parametrize("guarded", [False, True])
def test_a_process_has_its_words_environment_folder_and_exit_code(address: str, guarded: bool, tmp_path: Path) -> None:
    """The modules are imported before the fork, and a forked process has the same parameters as a started one."""
    process = start(address, "tell", tmp_path, "some", "words", guarded=guarded)
    assert process.wait() == 7
    assert process.poll() == 7
    assert (tmp_path / "out").read_text() == f"some words yes {Path.cwd()} True\n"


@pytest.mark.parametrize(("function", "said"), [("fail", "RuntimeError: it fails"), ("leave", "it leaves")])
def test_a_failure_is_an_exit_code_and_a_line(address: str, function: str, said: str, tmp_path: Path) -> None:
    """A failure in a forked process looks as at the end of a program."""
    assert start(address, function, tmp_path, guarded=True).wait() == 1
    assert said in (tmp_path / "out").read_text()


def children(folder: Path) -> list[psutil.Process]:
    """Return the two processes of `stay`, child first."""
    until(lambda: (folder / "out").read_text().count("child") == 2)
    pid = int((folder / "out").read_text().split()[1])
    child = psutil.Process(pid)
    parent = child.parent()
    assert parent is not None
    return [child, parent]


def test_a_guard_ends_all_processes_when_its_input_is_closed(address: str, tmp_path: Path) -> None:
    """The guard ends forked processes as it ends a program."""
    process = start(address, "stay", tmp_path, guarded=True)
    alive = children(tmp_path)
    process.stdin.close()
    process.wait()
    _, left = psutil.wait_procs(alive)
    assert left == []


def test_a_killed_process_has_ended_and_so_has_what_it_guarded(address: str, tmp_path: Path) -> None:
    """A killed process cannot report its exit code, so the signal is reported."""
    process = start(address, "stay", tmp_path, guarded=True)
    child, parent = children(tmp_path)
    process.kill()
    assert process.wait() == -signal.SIGKILL
    assert psutil.wait_procs([parent])[1] == []
    child.kill()  # an engine's children see for themselves that their parent ended


def test_an_import_that_takes_long_can_be_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of a run stops an import that another thread waits for, and leaves no fork server behind."""
    (tmp_path / "slow_import.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(IMPORT_ROOT))))
    monkeypatch.delenv(VARIABLE, raising=False)
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(fork_server, "slow_import:preload")
        until(lambda: forked.IMPORTING)
        (server,) = forked.IMPORTING
        stop_imports()
        with pytest.raises(ForkServerError):
            waiting.result()
    assert server.wait() == -signal.SIGKILL
    assert not forked.IMPORTING


def test_an_import_that_never_ends_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the time limit, because the log of the import would not show it."""
    (tmp_path / "endless_import.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(IMPORT_ROOT))))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.setattr(forked, "PRELOAD_SECONDS", 0.1)
    with pytest.raises(ForkServerError, match=r"importing the engine took more than 0\.1 s"):
        fork_server("endless_import:preload")
    assert not forked.IMPORTING


def test_an_import_can_begin_before_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever needs it later waits for the rest. One that nobody needed is ended while it imports."""
    (tmp_path / "counted_import.py").write_text("open('imports', 'a').write('x')\ndef preload(): pass\n")
    (tmp_path / "unneeded_import.py").write_text("import time\ntime.sleep(600)\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join((str(tmp_path), str(IMPORT_ROOT))))
    monkeypatch.delenv(VARIABLE, raising=False)
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        import_ahead("counted_import:preload")
    assert fork_server("counted_import:preload") == fork_server("counted_import:preload")
    assert (tmp_path / "imports").read_text() == "x"
    import_ahead("unneeded_import:preload")
    server, address = forked.OWN.pop(("unneeded_import:preload",))
    forked.end(server, address)
    assert server.returncode == -signal.SIGKILL


def test_waiting_has_a_limit(address: str, tmp_path: Path) -> None:
    """The limit raises TimeoutExpired, as for a subprocess."""
    process = start(address, "stay", tmp_path)
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(0.05)
    for one in children(tmp_path):
        one.kill()
    process.wait()


def test_without_a_fork_server_an_engine_starts_in_the_usual_way(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log of the engine names the reason."""

    def none(*_: str) -> str:
        raise ForkServerError("no room")

    monkeypatch.setattr("coldproof.adapters.common.process.fork_server", none)
    engine = EngineProcess(
        [sys.executable, "-c", "print('started')"], {}, tmp_path / "e.log", forking=Forking(preload="a:b", run="c:d")
    )
    until(lambda: not engine.running())
    engine.stop()
    assert (tmp_path / "e.log").read_text().splitlines() == ["Coldproof: started without a fork: no room", "started"]


def test_an_engine_is_forked_and_stopped(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Stopping a forked engine ends every process that it started."""
    monkeypatch.setenv(VARIABLE, address)
    forking = Forking(preload="forked_jobs:preload", run="forked_jobs:stay")
    engine = EngineProcess([sys.executable, "-m", "x"], {"GIVEN": "yes"}, tmp_path / "out", forking=forking)
    alive = children(tmp_path)
    assert set(alive) <= set(engine.processes())
    engine.stop()
    assert psutil.wait_procs(alive)[1] == []
    assert not engine.running()


def test_forked_processes_end_with_their_parent(tmp_path: Path) -> None:
    """Forked processes end even if their parent is killed, and the temporary folder is empty afterwards."""
    (tmp_path / "forked_jobs.py").write_text(JOBS)
    code = (
        "import os, sys; from pathlib import Path; from coldproof.adapters.common.forked import *;"
        "a = fork_server('forked_jobs');"
        "p = ForkedProcess(a, 'forked_jobs:stay', (), environment=os.environ, output=open('out', 'wb'), guarded=True);"
        "print(a, flush=True); sys.stdin.read()"
    )
    path = os.pathsep.join((str(tmp_path), str(IMPORT_ROOT)))
    environment = {**os.environ, "PYTHONPATH": path, VARIABLE: ""}
    with subprocess.Popen(
        [sys.executable, "-c", code], cwd=tmp_path, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        address = Path(run.stdout.readline().decode().strip())
        alive = children(tmp_path)
        assert address.exists()
        run.kill()
    assert psutil.wait_procs(alive)[1] == []
    until(lambda: not address.parent.exists())
