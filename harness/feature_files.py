"""Finds the files of features by their names, so that nothing names a feature.

A feature is a folder below `harness/features`. The last word of a file's name says to which room the file adds:
`steps` to the workload's kinds of steps, `checks`, `evidence`, `bounds` and `states` to the judgement, `perform` to
the runner, `script` to scripts of cases, `circumstances` to their signatures. Files with the last words `workloads`
and `facts` register nothing.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Iterator

FEATURES = "coldproof.harness.features"


def modules(package: str) -> Iterator[str]:
    """Yield the modules and packages of a package."""
    path = importlib.import_module(package).__path__
    return (found.name for found in pkgutil.iter_modules(path, f"{package}."))


@functools.cache
def load(word: str, *, package: str = "") -> None:
    """Import each module of a package, and each file of a feature whose name ends with a word.

    What these files register is then known.
    """
    for module in modules(package) if package else ():
        importlib.import_module(module)
    for feature in modules(FEATURES):
        for file in modules(feature):
            if re.split(r"[._]", file)[-1] == word:
                importlib.import_module(file)
