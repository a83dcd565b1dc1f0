"""A script starts its server, stops it however it ends, and gives it the weights that a restart replaces."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from support.histories import ask, burst
from support.scripts import case_of, module_of
from support.waiting import until

from coldproof.adapters.protocol.restarts import EngineChange
from coldproof.adapters.vllm.server import PAIR
from coldproof.harness.case.reproducer.script import reproducer
from coldproof.harness.workload.steps import Restart, RestartSide, Side

SERVER = "python -m vllm.entrypoints.openai.api_server --model /my/model --port 8000"
# Answers the routes that a script queries first, and never a completion. It has a child process.
STAND_IN = """
import http.server, os, subprocess, sys, time
from pathlib import Path

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"data": [{"id": "base"}]}')

    def do_POST(self):
        Path("pids").write_text(f"{os.getpid()} {child.pid}")
        time.sleep(600)

child = subprocess.Popen(["sleep", "600"])
http.server.ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler).serve_forever()
"""


def is_running(process: int) -> bool:
    """Return whether a process runs. A zombie does not run."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
def test_a_script_that_is_terminated_leaves_no_server(tmp_path: Path) -> None:
    """The processes of the server are stopped too, and the exit code says that nothing was tested."""
    case = case_of("vllm", burst(ask()))
    case = msgspec.structs.replace(case, recipes={}, engine_config={"command": SERVER, "model": "/my/model"})
    (tmp_path / "stand_in.py").write_text(STAND_IN)
    text, count = re.subn(r"(?m)^COMMAND = .*$", "COMMAND = 'python stand_in.py --port 8000'", reproducer(case))
    assert count == 1
    (tmp_path / "script.py").write_text(text)
    pids = tmp_path / "pids"
    script = subprocess.Popen([sys.executable, "script.py"], cwd=tmp_path)
    try:
        until(lambda: (pids.exists() and pids.read_text()) or script.poll() is not None)
        script.send_signal(signal.SIGTERM)
        assert script.wait() == 2
    finally:
        script.kill()
    assert not [one for one in map(int, pids.read_text().split()) if is_running(one)]


def test_a_script_without_its_package_tests_nothing(tmp_path: Path) -> None:
    """Python itself would exit with 1 here, which would mean that the bug exists."""
    (tmp_path / "script.py").write_text(reproducer(case_of("vllm-inproc", burst(ask()))))
    without = "import runpy, sys; sys.modules['torch'] = None; runpy.run_path('script.py', run_name='__main__')"
    done = subprocess.run(
        [sys.executable, "-c", without], cwd=tmp_path, capture_output=True, text=True, check=False, env=dict(os.environ)
    )
    assert done.returncode == 2, done.stderr
    assert "could not test: ModuleNotFoundError" in done.stdout


def test_a_restart_replaces_other_weights_by_the_models_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server starts with the other weights.

    A server with the model's own weights from the start would show no bug.
    """
    ask_twice = (burst(ask()), Restart(EngineChange.WEIGHTS), burst(ask()))
    names = module_of(case_of("llamacpp", *ask_twice))
    names["FILES"] = tmp_path
    monkeypatch.setattr("sys.argv", ["script.py", "http://127.0.0.1:1"])
    prompts: list[str] = []
    names["input"] = prompts.append
    client = names["LlamaServer"]()
    others = (tmp_path / "model.gguf").read_bytes()
    client.restart("other weights")
    own = (tmp_path / "model.gguf").read_bytes()
    assert own != others
    assert len(own) == len(others)
    assert "Up to here the server had other weights" in prompts[0]
    names["write_files"](0)
    assert (tmp_path / "model.gguf").read_bytes() == own


def test_a_script_without_such_a_restart_begins_with_the_models_own_weights(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A restart with other settings changes no file."""
    names = module_of(case_of("llamacpp", burst(ask()), Restart(EngineChange.ROPE), burst(ask())))
    names["FILES"] = tmp_path
    monkeypatch.setattr("sys.argv", ["script.py", "http://127.0.0.1:1"])
    names["input"] = lambda _words: ""
    client = names["LlamaServer"]()
    first = (tmp_path / "model.gguf").read_bytes()
    client.restart("other rope settings")
    assert (tmp_path / "model.gguf").read_bytes() == first


def test_a_script_restarts_one_side_by_the_router_of_both() -> None:
    """No other script has code for it."""
    pair = msgspec.structs.replace(
        case_of("vllm", burst(ask()), RestartSide(Side.DECODE), burst(ask())),
        engine_config={"command": f"python -m {PAIR} --model m", "model": "m"},
        recipes={},
    )
    assert 'f"{self.url}/sides/{side}/restart"' in reproducer(pair)
    assert "/sides/" not in reproducer(case_of("vllm", burst(ask())))
