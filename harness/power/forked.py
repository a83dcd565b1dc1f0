"""Runs a function in a process of its own that has vLLM imported already, for as long as it is given."""

from __future__ import annotations

import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.context import ForkServerContext
from pathlib import Path

import pytest

PRELOAD = "harness.power.preload"


class DidNotEnd(Exception):
    """A run took longer than it was given, and was ended."""


def server() -> ForkServerContext:
    """The process that runs are forked from; made by the first one."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([PRELOAD])
    return context


def pytest_main(words: tuple[str, ...]) -> int:
    """One pytest run."""
    return int(pytest.main(list(words)))


def within(seconds: float, function: Callable[[tuple[str, ...]], int], words: tuple[str, ...], folder: Path) -> int:
    """The exit code of `function(words)`, run in `folder` with its output in output.log there.

    Raises DidNotEnd when it takes longer than that.
    """
    process = server().Process(target=child, args=(function, words, folder), daemon=False)
    process.start()
    process.join(seconds)
    if process.exitcode is None:
        process.kill()
        process.join()
        raise DidNotEnd(f"did not end within {seconds:.0f} s")
    return process.exitcode


def child(function: Callable[[tuple[str, ...]], int], words: tuple[str, ...], folder: Path) -> None:
    """In the new process: go there, write there, run, and leave without waiting for what an engine left running."""
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
