"""Runs that fail before they start, one after another in one process, so that Coldproof is imported only once."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence

from support.paths import ROOT

RUNS = """import contextlib, io, json, sys
import pytest
for arguments in json.load(sys.stdin):
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = pytest.main(arguments)
    print(json.dumps([code, said.getvalue()]))
"""


def outcomes(runs: Sequence[Sequence[str]], environment: Mapping[str, str]) -> list[tuple[int, str]]:
    """Return exit code and output of a pytest run for each of these lists of arguments, all in one process."""
    done = subprocess.run(
        [sys.executable, "-c", RUNS],
        input=json.dumps(runs),
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [(code, said) for code, said in map(json.loads, done.stdout.splitlines())]
