"""Runs a function in a forked process that has the engines imported already, with a time limit."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

from coldproof.adapters.common.forked import fork_server
from coldproof.harness.session.layers.processes import all_imports, start


class RunTimedOut(Exception):
    """A run exceeded its time limit and was killed."""


def run_in_fork(seconds: float, function: Callable[[list[str]], int], words: list[str], folder: Path) -> int:
    """Run `function(words)` in `folder`, with its output in output.log there, and return the exit code.

    Raises RunTimedOut if it takes longer than `seconds`, and ForkServerError if no process can be forked.
    """
    address = fork_server(*all_imports())
    process = start(function, words, folder / "output.log", address=address, folder=folder)
    try:
        return process.wait(seconds)
    except subprocess.TimeoutExpired as late:
        process.kill()
        process.wait()
        raise RunTimedOut(f"did not end within {seconds:.0f} s") from late
