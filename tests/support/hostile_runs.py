"""Runs of the suites against a hostile server, each in a process of its own."""

from __future__ import annotations

from pathlib import Path

from support.suite_runs import run_coldproof


def run_on(url: str, folder: Path, *words: str, least: float = 30.0, **environment: str) -> tuple[int, str]:
    """Return the exit code and the output of a short run, whose report goes to a folder.

    `least`: the minimum request timeout in seconds. The usual value is for busy machines, but some of these servers
    never answer on any machine.
    """
    command = ["--engine-url", url, "--budget", "1s", "--report-dir", str(folder), "--diagnose", "none", *words]
    given = {"LEAST_REQUEST_SECONDS": str(least), **environment}
    done = run_coldproof([*command, "-p", "support.short_requests"], given)
    return done.returncode, done.stdout
