"""Finds the files of features by their names, so that nothing names a feature.

A feature is a folder below `harness/features`. The last word of a file's name says to which room the file adds: `steps`
to the workload's kinds of steps, `checks` and `evidence` to the judgement, `perform` to the runner, `circumstances` to
the signatures of cases.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

FEATURES = "coldproof.harness.features"


def features() -> Iterator[str]:
    """Yield the package of each feature."""
    path = importlib.import_module(FEATURES).__path__
    return (found.name for found in pkgutil.iter_modules(path, f"{FEATURES}.") if found.ispkg)


def load(word: str) -> None:
    """Import each file of a feature whose name ends with this word. What they register is then known."""
    for package in features():
        for found in pkgutil.iter_modules(importlib.import_module(package).__path__):
            if found.name.split("_")[-1] == word:
                importlib.import_module(f"{package}.{found.name}")
