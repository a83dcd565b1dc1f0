"""Finds the files of features by their names, so that nothing names a feature.

A feature is a folder below `harness/features`. The last word of a file's name says to which room the file adds:
`steps` to the workload's kinds of steps, `checks`, `evidence`, `bounds` and `states` to the judgement, `perform` to
the runner, `script` to scripts of cases, `circumstances` to their signatures. Files with the last words `workloads`
and `facts` register nothing. A file with another last word is refused: it would register nothing either, and a
requirement would conform without its checker.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Generic, TypeVar

FEATURES = "coldproof.harness.features"
WORDS = (
    *("steps", "checks", "evidence", "bounds", "states", "perform", "script", "circumstances"),
    *("workloads", "facts"),  # these register nothing
)
Entry = TypeVar("Entry")


def modules(package: str) -> Iterator[str]:
    """Yield the modules and packages of a package."""
    path = importlib.import_module(package).__path__
    return (found.name for found in pkgutil.iter_modules(path, f"{package}."))


@functools.cache
def feature_files() -> dict[str, str]:
    """Return the last word of the name of each file of a feature. Raises ImportError for another word, or a folder
    that is no package.
    """
    for root in importlib.import_module(FEATURES).__path__:
        for folder in Path(root).iterdir():
            if any(folder.glob("*.py")) and not (folder / "__init__.py").exists():
                raise ImportError(f"{folder} is no package, so that its files would not be found: add __init__.py")
    found = {file: re.split(r"[._]", file)[-1] for feature in modules(FEATURES) for file in modules(feature)}
    for file, word in found.items():
        if word not in WORDS:
            raise ImportError(
                f"{file}: the last word of the name of a feature's file must be one of {', '.join(WORDS)}"
            )
    return found


@functools.cache
def load(word: str, *, package: str = "") -> None:
    """Import each module of a package, and each file of a feature whose name ends with a word.

    What these files register is then known.
    """
    for module in modules(package) if package else ():
        importlib.import_module(module)
    for file, last in feature_files().items():
        if last == word:
            importlib.import_module(file)


class Ordered(Generic[Entry]):
    """What files register in an order: those of one package, and those of features whose name ends with a word."""

    def __init__(self, word: str, *, package: str = "") -> None:
        self.word, self.package = word, package
        self.entries: dict[int, Entry] = {}
        self._names: dict[int, str] = {}

    def put(self, order: int, entry: Entry, function: Callable[..., Any]) -> None:
        """Register what a function stands for. `order`: its place. Raises ValueError for a taken place."""
        name = function.__qualname__
        if order in self.entries:
            raise ValueError(f"{name} and {self._names[order]} have the same place in the order: {order}")
        self.entries[order], self._names[order] = entry, name

    def load(self) -> tuple[Entry, ...]:
        """Import every file, and return what they register, in order."""
        load(self.word, package=self.package)
        return tuple(self.entries[place] for place in sorted(self.entries))
