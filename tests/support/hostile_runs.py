"""Runs of the suites against a hostile server, each in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

from coldproof import IMPORT_ROOT

TESTS = ROOT / "tests"


def run_on(url: str, folder: Path, *words: str, least: float = 30.0, **environment: str) -> tuple[int, str]:
    """Return the exit code and the output of a short run, whose report goes to a folder.

    `least`: the minimum request timeout in seconds. The usual value is for busy machines, but some of these servers
    never answer on any machine.
    """
    command = ["run", "--engine-url", url, "--budget", "1s", "--report-dir", str(folder), "--diagnose", "none", *words]
    path = {"PYTHONPATH": f"{IMPORT_ROOT}{os.pathsep}{TESTS}", "LEAST_REQUEST_SECONDS": str(least)}
    done = subprocess.run(
        [sys.executable, "-m", "coldproof", *command, "-p", "support.short_requests"],
        cwd=ROOT,
        env={**os.environ, **path, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
