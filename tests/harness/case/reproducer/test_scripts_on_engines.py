"""Scripts of findings show their bugs on real engines, in a process that has no Coldproof."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.paths import ROOT

from coldproof.adapters.registry import ENGINES
from coldproof.harness.case.finding_folder import script_of
from coldproof.harness.case.finding_records import read_finding, read_records

RECORDS = read_records()
SHOWN = ("llamacpp/slot-keeps-the-adapter", "openvino/hash-lacks-the-adapter", "vllm/adapter-key-lacks-the-contents")
# Removes this checkout and an installed Coldproof from the import path.
ALONE = """
import runpy, sys
sys.path[:] = [entry for entry in sys.path if not entry.startswith(sys.argv[1])]
sys.modules["coldproof"] = None
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def installed(name: str) -> bool:
    """Return whether the engine of a finding is installed."""
    return ENGINES[RECORDS[name].found.adapter].installed


@pytest.mark.engine
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.skipif(not installed(name), reason="not installed")) for name in SHOWN],
)
def test_a_script_shows_its_bug(name: str, tmp_path: Path) -> None:
    """The exit code is 1, because the installed release has the bug."""
    script = tmp_path / "script.py"
    script.write_text(script_of(read_finding(RECORDS[name]), from_case=True))
    done = subprocess.run(
        [sys.executable, "-I", "-c", ALONE, str(ROOT / "src"), str(script)],
        cwd=tmp_path,
        env={name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1, done.stdout + done.stderr
    assert "WRONG" in done.stdout
