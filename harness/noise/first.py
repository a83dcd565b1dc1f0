"""A run of the suites that ends as soon as enough of its examples were found wrong: what was caught is known by then.

Making a counterexample small and confirming it would take ten times as long. Requests to an engine without a fault are
counted in the same way, by whether the judge accuses them, so that both sides of the curve mean the same.
"""

from __future__ import annotations

import os
import shutil
from typing import Any

import pytest

from harness.conduct import Conductor
from harness.plugin import CONDUCTOR

ENOUGH = 3  # examples that were found wrong: the first need not be the one that strays furthest
FOUND = 86  # the exit code that says so


class EndsEarly:
    """A plugin of pytest's that looks at the run's own events."""

    def __init__(self) -> None:
        self.wrong = 0
        self.heard: set[int] = set()

    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        """Listen to the run, which is open by now."""
        conductor = item.config.stash.get(CONDUCTOR, None)
        if conductor is not None and id(conductor) not in self.heard:
            self.heard.add(id(conductor))
            conductor.log.subscribe(lambda kind, fields: self.hear(conductor, kind, fields))

    def hear(self, conductor: Conductor, kind: str, fields: dict[str, Any]) -> None:
        """End the process once there is enough; what is written by then is whole."""
        self.wrong += kind == "example" and bool(fields["findings"])
        confirming = kind == "phase" and str(fields["words"]).startswith("confirming")
        if self.wrong >= ENOUGH or (self.wrong and confirming):
            if conductor.session is not None:
                shutil.rmtree(conductor.session.work, ignore_errors=True)
            os._exit(FOUND)


def pytest_main(words: tuple[str, ...]) -> int:
    """One run, to its end or until enough was found."""
    return int(pytest.main(list(words), plugins=[EndsEarly()]))
