"""Runs a function in a forked process that has the engines imported already, with a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from coldproof.adapters.common.environment import current_environment
from coldproof.adapters.common.forked import VARIABLE, ForkedProcess, fork_server
from coldproof.adapters.registry import ENGINES
from coldproof.harness.session.layers.processes import PLUGIN, preloads
from coldproof.reports.files.own_folder import claim


class RunTimedOut(Exception):
    """A run exceeded its time limit and was killed."""


def pytest_main(words: list[str]) -> int:
    """Run pytest and return its exit code."""
    return int(pytest.main(words))


def run_in_fork(seconds: float, function: Callable[[list[str]], int], words: list[str], folder: Path) -> int:
    """Run `function(words)` in `folder`, with its output in output.log there, and return the exit code.

    Raises RunTimedOut if it takes longer than `seconds`, and ForkServerError if no process can be forked.
    """
    address = fork_server(PLUGIN, *preloads(ENGINES.values()))
    name = f"{function.__module__}:{function.__qualname__}"
    environment = {**current_environment(), VARIABLE: address}
    with claim(folder / "output.log").open("wb") as output:
        process = ForkedProcess(
            address, name, tuple(words), environment=environment, folder=folder, output=output, guarded=False
        )
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired as late:
        process.kill()
        process.wait()
        raise RunTimedOut(f"did not end within {seconds:.0f} s") from late
