"""Runs a function in a forked process that has the engines imported already, with a time limit."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

PRELOAD = "coldproof.harness.power.preload"


class RunTimedOut(Exception):
    """A run exceeded its time limit and was killed."""


def pytest_main(words: tuple[str, ...]) -> int:
    """Run pytest and return its exit code."""
    return int(pytest.main(list(words)))


def run_in_fork(
    seconds: float, function: Callable[[tuple[str, ...]], int], words: tuple[str, ...], folder: Path
) -> int:
    """Run `function(words)` in `folder`, with its output in output.log there, and return the exit code.

    Raises RunTimedOut if it takes longer than `seconds`.
    """
    context = multiprocessing.get_context("forkserver")  # the first run starts its server
    context.set_forkserver_preload([PRELOAD])
    process = context.Process(target=child_main, args=(function, words, folder), daemon=False)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise RunTimedOut(f"did not end within {seconds:.0f} s")
    return process.exitcode


def child_main(function: Callable[[tuple[str, ...]], int], words: tuple[str, ...], folder: Path) -> None:
    """Run the function in the new process. Exit without waiting for processes that an engine left running."""
    os.chdir(folder)
    output = os.open(folder / "output.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    os.dup2(output, 1)
    os.dup2(output, 2)
    code = 3
    try:
        code = function(words)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
