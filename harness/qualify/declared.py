"""What the suites declare today, read from the tests that pytest collected."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import pytest

from harness.cells import CELLS
from harness.qualify.frozen import FrozenList, FrozenTest, Place
from harness.selection import cell_name, requirement_of, statement_of, test_name


def declared(items: Iterable[pytest.Item], version: str) -> FrozenList:
    """The list as it would be frozen now; a test that runs in several cells is one."""
    tests = {(t.declared.id, t.test): t for item in items if (t := of_item(item)) is not None}
    return FrozenList(version=version, tests=tuple(tests.values()), cells=tuple(CELLS.values()))


def of_item(item: pytest.Item) -> FrozenTest | None:
    """One test that stands for a requirement."""
    requirement = requirement_of(item)
    if requirement is None:
        return None
    return FrozenTest(
        declared=requirement,
        test=test_name(item),
        suite=item.path.name,
        statement=inspect.cleandoc(statement_of(item)),  # as newer Pythons keep it
        source=source_digest(item.path, test_name(item)),
    )


def place(item: pytest.Item) -> Place:
    """Where a test of a requirement stands."""
    requirement = requirement_of(item)
    return Place(requirement.id if requirement is not None else "", test_name(item), cell_name(item))


@cache
def source_digest(path: Path, function: str) -> str:
    """Of a function's source with its decorators; what stands around it in the file does not count."""
    text = path.read_text()
    for node in ast.parse(text).body:
        if isinstance(node, ast.FunctionDef) and node.name == function:
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            lines = text.splitlines()[first - 1 : node.end_lineno]
            return hashlib.sha256("\n".join(lines).encode()).hexdigest()
    raise LookupError(f"{path} has no test {function}")
