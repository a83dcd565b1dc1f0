"""Runs that fail before they start, one after another in one process, which is forked from one with Coldproof."""

from __future__ import annotations

import contextlib
import io
import json
import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.paths import ROOT
from support.suite_runs import forked

from coldproof.adapters.common.forked import fork_server
from coldproof.harness.session.pytest_command import PLUGIN

RUNS, OUTCOMES = "runs.json", "outcomes.json"


def outcomes(
    runs: Sequence[Sequence[str]], environment: Mapping[str, str], *, address: str = ""
) -> list[tuple[int, str]]:
    """Return exit code and output of a pytest run for each of these lists of arguments, all in one process.

    `address`: of the fork server that the process is forked from; "": of one in this process's environment.
    """
    server = address or fork_server(PLUGIN)
    path = os.pathsep.join((environment["PYTHONPATH"], str(ROOT / "tests")))  # the process imports this module
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / RUNS).write_text(json.dumps(runs))
        done = forked(f"{__name__}:{main.__name__}", [folder], server, {**environment, "PYTHONPATH": path}, ROOT)
        assert done.returncode == 0, done.stdout
        return [(code, said) for code, said in json.loads((Path(folder) / OUTCOMES).read_text())]


def main(words: list[str]) -> int:
    """Run pytest with each list of arguments in this folder, and write there how the runs ended."""
    folder, ended = Path(words[0]), []
    for arguments in json.loads((folder / RUNS).read_text()):
        said = io.StringIO()
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
            code = pytest.main(arguments)
        ended.append((code, said.getvalue()))
    (folder / OUTCOMES).write_text(json.dumps(ended))
    return 0
