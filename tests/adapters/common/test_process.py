"""Whatever happens to an engine or to the run, no process of the engine stays behind, and its last output is kept."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from support.paths import ROOT
from support.waiting import until

from coldproof import IMPORT_ROOT
from coldproof.adapters.common import process as process_module
from coldproof.adapters.common.process import GUARD, EngineProcess, port_is_taken, python_path
from coldproof.adapters.llamacpp import setup

# An engine with a worker in its process group, as vLLM has. It says both process ids when both are up.
ENGINE = """
import os, signal, subprocess, sys, time
if "deaf" in sys.argv:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import time; print('up', flush=True); time.sleep(300)"],
                         stdout=subprocess.PIPE)
child.stdout.readline()
if "deaf" not in sys.argv:
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(child.wait()))
print(os.getpid(), child.pid, flush=True)
if "crash" in sys.argv:
    sys.exit("out of memory, said the engine")
time.sleep(300)
"""
# A test run that starts an engine, and forgets to stop it when its standard input closes.
RUN = """
import sys
from pathlib import Path
from coldproof.adapters.common.process import EngineProcess
engine = EngineProcess([sys.executable, "-c", sys.argv[1]], {}, Path(sys.argv[2]))
sys.stdin.read()
"""
QUICK_GUARD = """
import sys
from coldproof.adapters.common import guard
guard.GRACE_SECONDS = 0.5
sys.exit(guard.main(sys.argv[1:]))
"""
Start = Callable[..., EngineProcess]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    """Yield a function that starts stand-in engines, and stop those that a failing test leaves."""
    started: list[EngineProcess] = []

    def begin(*words: str, code: str = ENGINE) -> EngineProcess:
        environment = {"PYTHONPATH": str(IMPORT_ROOT)}
        started.append(EngineProcess([sys.executable, "-c", code, *words], environment, tmp_path / "logs" / "e.log"))
        return started[-1]

    yield begin
    for engine in started:
        engine.stop()


def pids_in(log: Path) -> list[int]:
    """Return the process ids that the stand-in engine printed."""
    until(lambda: log.exists() and log.read_text().count("\n"))
    return [int(word) for word in log.read_text().splitlines()[0].split()]


def runs(pid: int) -> bool:
    """Return whether a process exists and is not a zombie."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def run_with_engine(log: Path) -> subprocess.Popen[bytes]:
    """Start another process that plays the role of the test run."""
    return subprocess.Popen([sys.executable, "-c", RUN, ENGINE, str(log)], cwd=ROOT, stdin=subprocess.PIPE)


def assert_ended(pids: list[int]) -> None:
    """Check that both the engine and its worker end. A process that was killed may take a moment on a busy machine."""
    assert len(pids) == 2
    until(lambda: not any(map(runs, pids)))


def test_stop_leaves_no_process(start: Start) -> None:
    """The engine, its worker and the guard have ended when stop() returns, not some time later."""
    engine = start()
    pids = pids_in(engine.log)
    assert all(map(runs, pids))
    assert engine.running()
    assert {p.pid for p in engine.processes()} >= set(pids)
    engine.stop()
    assert_ended(pids)
    assert not engine.running()
    assert engine.processes() == []


def test_an_engine_that_ignores_sigterm_is_killed(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The grace period is the guard's own, shortened here."""
    guard = tmp_path / "guard.py"
    guard.write_text(QUICK_GUARD)
    monkeypatch.setattr(process_module, "GUARD", guard)
    engine = start("deaf")
    pids = pids_in(engine.log)
    engine.stop()
    assert_ended(pids)


def beside_a_module(script: Path, folder: Path, module: str) -> Path:
    """Return a copy of one of our scripts in a folder that also has a module with a name of the standard library."""
    (folder / module).write_text("raise SystemExit('imported from the folder of the script')\n")
    return Path(shutil.copy(script, folder))


def test_the_guard_imports_nothing_from_its_own_folder(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`adapters/` has files with the names of packages, such as transformers.py and vllm.py."""
    monkeypatch.setattr(process_module, "GUARD", beside_a_module(GUARD, tmp_path, "subprocess.py"))
    engine = start("crash")
    until(lambda: not engine.running())
    assert "out of memory, said the engine" in engine.tail()


def test_llama_cpps_server_imports_nothing_from_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The help of the server works without llama.cpp."""
    monkeypatch.setattr(setup, "SERVER", beside_a_module(setup.SERVER, tmp_path, "argparse.py"))
    here, _ = setup.command(["--help"])
    assert "--slot-save-path" in subprocess.run(here, capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize("theirs", ["", f"/theirs{os.pathsep}/more"])
def test_our_packages_come_after_the_users_path(theirs: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An engine imports the user's packages as it would without Coldproof, and no path is added twice."""
    monkeypatch.setenv("PYTHONPATH", theirs)
    wanted = [*filter(None, theirs.split(os.pathsep)), str(IMPORT_ROOT)]
    assert python_path().split(os.pathsep) == wanted
    monkeypatch.setenv("PYTHONPATH", python_path())
    assert python_path(Path("/first")).split(os.pathsep) == ["/first", *wanted]


def test_stop_twice_is_stop_once(start: Start) -> None:
    """A second stop does nothing, also for an engine that had ended by itself."""
    engine = start()
    pids = pids_in(engine.log)
    engine.stop()
    engine.stop()
    assert_ended(pids)


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_the_engine_of_a_killed_test_run_ends(tmp_path: Path, how: signal.Signals) -> None:
    """After SIGKILL no process can clean up, so the closed pipe has to end the engine."""
    log = tmp_path / "e.log"
    with run_with_engine(log) as run:
        pids = pids_in(log)
        assert all(map(runs, pids))
        run.send_signal(how)
        assert run.wait() == -how
        until(lambda: not any(map(runs, pids)))


def test_a_test_run_that_forgets_to_stop_leaves_nothing(tmp_path: Path) -> None:
    """An ordinary exit closes the pipe as well, which ends the engine."""
    log = tmp_path / "e.log"
    with run_with_engine(log) as run:
        pids = pids_in(log)
        run.communicate()
        assert run.returncode == 0
        until(lambda: not any(map(runs, pids)))


def test_a_crashed_engine_leaves_no_worker(start: Start) -> None:
    """When the main process has crashed its worker ends too, and exit code and last output are kept."""
    engine = start("crash")
    pids = pids_in(engine.log)
    until(lambda: not engine.running())
    assert_ended(pids)
    assert engine.exit_code() == 1
    assert engine.tail().endswith("out of memory, said the engine")


@pytest.mark.parametrize(
    ("code", "expected"),
    [("raise SystemExit(0)", 0), ("raise SystemExit(7)", 7), ("import os; os.kill(os.getpid(), 9)", 128 + 9)],
)
def test_the_exit_code_is_the_engines(start: Start, code: str, expected: int) -> None:
    """A signal is reported as a shell reports it: 128 plus its number."""
    engine = start(code=code)
    until(lambda: not engine.running())
    assert engine.exit_code() == expected


def test_a_running_engine_has_no_exit_code(start: Start) -> None:
    """The exit code of a running engine is None, not zero."""
    engine = start()
    pids_in(engine.log)
    assert engine.exit_code() is None


def test_a_command_that_does_not_exist_ends_with_its_reason(tmp_path: Path) -> None:
    """The log names the command that could not be started."""
    engine = EngineProcess(["/no/such/engine"], {}, tmp_path / "e.log")
    until(lambda: not engine.running())
    engine.stop()
    assert engine.exit_code() != 0
    assert "/no/such/engine" in engine.tail()


def test_tail_is_the_end_of_the_log(start: Start) -> None:
    """The tail has the last lines of both streams, including bytes that are not UTF-8."""
    code = "import sys; [print(i) for i in range(100)]; sys.stdout.flush(); sys.stderr.buffer.write(b'\\xff end')"
    engine = start(code=code)
    until(lambda: not engine.running())
    lines = engine.tail().splitlines()
    assert lines[-2:] == ["99", "\N{REPLACEMENT CHARACTER} end"]
    assert len(lines) == process_module.TAIL_LINES
    assert len(engine.log.read_bytes().splitlines()) == 101


def test_the_tail_begins_with_the_first_error(start: Start) -> None:
    """The first error is kept, because messages of other processes push it out of the last lines."""
    cause = "(Worker) ERROR [worker.py:7] a.b.CacheMissError: no such image"
    code = (
        f"print('starting'); print({cause!r}); [print('(Server) ERROR [api.py:9] DeadError: ended') for _ in range(99)]"
    )
    engine = start(code=code)
    until(lambda: not engine.running())
    assert engine.tail().splitlines()[0] == cause
    assert len(engine.tail().splitlines()) == process_module.TAIL_LINES + 1


def test_the_log_outlives_the_engine(start: Start) -> None:
    """The log is evidence, and a missing log is reported instead of shown."""
    engine = start()
    pids = pids_in(engine.log)
    engine.stop()
    assert engine.tail() == " ".join(map(str, pids))
    engine.log.unlink()
    assert engine.tail().startswith("(log unreadable")


def test_the_tail_ends_at_the_stop_request(start: Start) -> None:
    """Shutdown messages are cut off, because what came before them is the reason for the stop."""
    code = """
import os, signal, sys, time
def goodbye(*_):
    os.write(1, b"shutting down\\n" * 100)  # the signal may come while `print` is at work, which is not reentrant
    sys.exit(0)
signal.signal(signal.SIGTERM, goodbye)
print("stuck", flush=True)
time.sleep(600)
"""
    engine = start(code=code)
    until(lambda: engine.tail() == "stuck")
    engine.stop()
    assert engine.tail() == "stuck"
    assert engine.log.read_text().count("shutting down") == 100


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux ends a process with its parent")
def test_an_engine_does_not_outlive_a_guard_that_is_killed(start: Start) -> None:
    """Without the guard no process sees the pipe close, as on a node that a fleet lost."""
    main = psutil.Process(pids_in(start().log)[0])
    guard = main.parent()
    assert guard is not None
    guard.kill()
    until(lambda: not runs(main.pid))


def test_the_engine_gets_the_environment_that_was_given(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The adapter decides what is inherited, so nothing else of our environment is passed on."""
    monkeypatch.setenv("OURS", "1")
    code = "import os; print(os.environ.get('GIVEN'), os.environ.get('OURS'))"
    engine = EngineProcess([sys.executable, "-c", code], {"GIVEN": "yes"}, tmp_path / "e.log")
    until(lambda: not engine.running())
    engine.stop()
    assert engine.tail() == "yes None"


def test_ctrl_c_reaches_the_test_run_only(start: Start) -> None:
    """Guard and engine are not in the terminal's process group, which gets the SIGINT."""
    engine = start()
    main = psutil.Process(pids_in(engine.log)[0])
    guard = main.parent()
    assert guard is not None
    assert guard.ppid() == os.getpid()
    assert os.getpgrp() not in {os.getpgid(pid) for pid in (guard.pid, *(p.pid for p in engine.processes()))}


def test_a_free_port_is_not_taken_until_a_process_listens() -> None:
    """A port that is bound but does not listen is not a running server."""
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        port = other.getsockname()[1]
        assert not port_is_taken(port)
        other.listen()
        assert port_is_taken(port)
