"""Builds the list of requirements as the suites declare them now, from the tests that pytest collected."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from coldproof.adapters.registry import OWN_CELLS
from coldproof.harness.release.requirements.frozen import FrozenList, FrozenTest, Place
from coldproof.harness.selection.select import cell_name, requirement_of, statement_of, test_name


def collected_list(items: Iterable[pytest.Item], version: str) -> FrozenList:
    """Return the list as it would be frozen now. A test that runs in several cells is listed once."""
    tests = {(t.declared.id, t.test): t for item in items if (t := frozen_test(item)) is not None}
    return FrozenList(version=version, tests=tuple(tests.values()), cells=tuple(OWN_CELLS.values()))


def frozen_test(item: pytest.Item) -> FrozenTest | None:
    """Return the list's entry for a test; None where the test stands for no requirement."""
    requirement = requirement_of(item)
    if requirement is None:
        return None
    return FrozenTest(
        declared=requirement,
        test=test_name(item),
        suite=item.path.name,
        statement=inspect.cleandoc(statement_of(item)),  # newer Pythons do the same at compile time
        source=source_digest(item.path, test_name(item)),
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
