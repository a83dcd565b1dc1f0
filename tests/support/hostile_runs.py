"""Run the suites on a hostile server, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from support.paths import ROOT

from coldproof import IMPORT_ROOT

# A run gives a request 30 s at least, for the sake of busy machines. These servers never answer, on any machine.
PROGRAM = """
import sys
from coldproof.harness.execution.engines import pool
pool.LEAST_REQUEST_SECONDS = {least}
from coldproof.harness.cli.main import main
sys.exit(main(sys.argv[1:]))
"""


def run_on(url: str, folder: Path, *words: str, least: float = 30.0, **environment: str) -> tuple[int, str]:
    """The exit code and the output of a short run, whose report goes to a folder."""
    command = ["run", "--engine-url", url, "--budget", "1s", "--report-dir", str(folder), "--diagnose", "none", *words]
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM.format(least=least), *command],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": f"{IMPORT_ROOT}", **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr
