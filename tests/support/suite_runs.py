"""Runs of the suites in processes of their own, which are forked from one that has imported Coldproof and vLLM.

Imports are most of a short run: one second of the processor for Coldproof and twelve for vLLM. Tests of what happens
before or beside a run (wrong options, signals, the import path) start Python.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from support.paths import PLUGIN_PATH, ROOT

from coldproof.adapters.common.forked import VARIABLE, ForkedProcess, fork_server
from coldproof.harness.option_words import join_values
from coldproof.harness.session.layers.processes import all_imports, pytest_main
from coldproof.harness.session.pytest_command import pytest_command, suite_words

NO_CACHE = ("-p", "no:cacheprovider")


def imported() -> str:
    """Return the address of the fork server that has imported Coldproof and vLLM."""
    return fork_server(*all_imports())


def run_pytest(
    words: Iterable[str], given: Mapping[str, str] | None = None, *, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Return a run of `pytest WORDS` that has ended, with all its output in stdout.

    `given`: variables of the environment besides those of this process.
    """
    address = imported()
    environment = {**os.environ, "PYTHONPATH": PLUGIN_PATH, VARIABLE: address, **(given or {})}
    return forked_pytest([*words, *NO_CACHE], address, environment, folder)


def run_command(command: Sequence[str], *, folder: Path = ROOT) -> subprocess.CompletedProcess[str]:
    """Return the run of a command that `pytest_command` made, which has ended, with all its output in stdout."""
    python = pytest_command(())[: -len(suite_words(()))]
    assert list(command[: len(python)]) == python
    return run_pytest(command[len(python) :], folder=folder)


def run_function(function: str, words: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Return the call of a function (`module:name`) with these words in a process that has imported all engines."""
    return forked(function, words, imported(), {**os.environ, "PYTHONPATH": PLUGIN_PATH}, ROOT)


def forked_pytest(
    words: Sequence[str], address: str, environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Return a run of pytest in a process of this fork server."""
    return forked(f"{pytest_main.__module__}:{pytest_main.__qualname__}", words, address, environment, folder)


def forked(
    function: str, words: Sequence[str], address: str, environment: Mapping[str, str], folder: Path
) -> subprocess.CompletedProcess[str]:
    """Return a call of a function in a process of this fork server, which has ended."""
    with tempfile.TemporaryFile() as output:
        run = ForkedProcess(
            address, function, tuple(words), environment=environment, output=output, guarded=False, folder=folder
        )
        try:
            code = run.wait()
        except BaseException:
            run.kill()
            raise
        output.seek(0)
        return subprocess.CompletedProcess(words, code, output.read().decode(errors="replace"), "")


def run_coldproof(
    words: Iterable[str], given: Mapping[str, str] | None = None, *, folder: Path = ROOT
) -> subprocess.CompletedProcess[str]:
    """Return a run of `coldproof run WORDS` that has ended, with all its output in stdout."""
    return run_pytest(suite_words(map(str, join_values([*words])), folder=folder), given, folder=folder)
