"""Builds the list of requirements as the suites declare them now: from collected tests, or from the suites' modules."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

from coldproof.adapters.registry import OWN_CELLS
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.release.requirements.frozen import FrozenList, FrozenTest, Place
from coldproof.harness.selection.select import cell_name, requirement_of, test_name, trial_of


def collected_list(items: Iterable[pytest.Item], version: str) -> FrozenList:
    """Return the list of the collected tests. A test that runs in several cells is listed once."""
    own = ((item, one) for item in items if (one := trial_of(item)) is not None)
    return listed((frozen_test(one.requirement, one.test, item.path, one.statement) for item, one in own), version)


def declared_list(suites: Iterable[ModuleType], version: str) -> FrozenList:
    """Return the list of all tests in these modules, as it would be frozen now."""
    return listed((test for suite in suites for test in declared_tests(suite)), version)


def declared_tests(suite: ModuleType) -> Iterator[FrozenTest]:
    """Yield the entry of each test of a requirement, in the order of the file."""
    for name, function in vars(suite).items():
        for mark in getattr(function, "pytestmark", ()) if inspect.isfunction(function) else ():
            if mark.name == "requirement":
                yield frozen_test(mark.args[0], name, Path(str(suite.__file__)), function.__doc__ or "")


def listed(tests: Iterable[FrozenTest], version: str) -> FrozenList:
    """Return the list with each of these tests once, and with the cells of Coldproof's own engines."""
    once = {(test.declared.id, test.test): test for test in tests}
    return FrozenList(version=version, tests=tuple(once.values()), cells=tuple(OWN_CELLS.values()))


def frozen_test(declared: Requirement, name: str, path: Path, docstring: str) -> FrozenTest:
    """Return the list's entry for a test function in a file."""
    return FrozenTest(
        declared=declared,
        test=name,
        suite=path.name,
        statement=inspect.cleandoc(docstring.strip()),  # newer Pythons do the same at compile time
        source=source_digest(path, name),
    )


def place_of(item: pytest.Item) -> Place:
    """Return the place of a collected test."""
    requirement = requirement_of(item)
    return Place(requirement.id if requirement is not None else "", test_name(item), cell_name(item))


@cache
def source_digest(path: Path, function: str) -> str:
    """Return the SHA-256 of a function's source with its decorators. Raises LookupError where the file lacks it."""
    text = path.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = text.splitlines()[first - 1 : node.end_lineno]
            return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    raise LookupError(f"{path} has no test {function}")
