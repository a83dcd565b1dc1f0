"""The ids and statements of all requirements, read from the text of the suites.

Nothing is imported: a run checks the names that a user gives before pytest collects the suites.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from coldproof.harness.release.run.sources import ROOT

SUITES = ROOT / "suites"


@cache
def statements(suites: Path = SUITES) -> dict[str, str]:
    """Return the statement of each requirement by its id: the docstrings of its tests."""
    found: dict[str, list[str]] = {}
    for path in sorted(suites.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef):
                for name in requirement_ids(node):
                    found.setdefault(name, []).append(ast.get_docstring(node) or "")
    return {name: "\n\n".join(dict.fromkeys(texts)) for name, texts in found.items()}


def requirement_ids(function: ast.FunctionDef) -> Iterator[str]:
    """Yield the id in a decorator `@requirement("ID", ...)` of a function; nothing for a function without one."""
    for decorator in function.decorator_list:
        match decorator:
            case ast.Call(func=ast.Name(id="requirement"), args=[ast.Constant(value=str(name)), *_]):
                yield name
