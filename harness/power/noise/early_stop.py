"""Runs the suites and stops as soon as enough examples fail: whether the fault is detected is known by then.

Minimising and confirming a counterexample would take ten times as long. Requests to an engine without a fault are
counted by the same criterion, a finding of the judge, so that both sides of the curve are comparable.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from coldproof.harness.event_log import CONFIRMING
from coldproof.harness.session.conductor import ConformanceRun
from coldproof.harness.session.plugin import RUN

MAX_FAILED_EXAMPLES = 3  # not 1, because the first failing example need not have the largest deviation
EXIT_FOUND = 86  # the exit code of a run that was stopped early


class EarlyStop:
    """A pytest plugin that watches the run's events."""

    def __init__(self) -> None:
        self.failed = 0
        self.subscribed: set[int] = set()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Subscribe to the events of the run."""
        run = item.config.stash.get(RUN, None)
        if run is not None and id(run) not in self.subscribed:
            self.subscribed.add(id(run))
            run.log.subscribe(lambda kind, fields: self.on_event(run, kind, fields))

    def on_event(self, run: ConformanceRun, kind: str, fields: dict[str, Any]) -> None:
        """End the process once enough examples failed. All events up to then are written completely."""
        self.failed += kind == "example" and bool(fields["findings"])
        confirming = kind == "phase" and fields.get("stage") == CONFIRMING
        if self.failed >= MAX_FAILED_EXAMPLES or (self.failed and confirming):
            if run.pool is not None:
                shutil.rmtree(run.pool.workspace.scratch, ignore_errors=True)
            os._exit(EXIT_FOUND)


def pytest_main(words: tuple[str, ...]) -> int:
    """Run pytest to its end, or until enough examples failed. Return the exit code."""
    return int(pytest.main(list(words), plugins=[EarlyStop()]))
