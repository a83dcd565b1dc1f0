"""Imports point one way: suites -> harness -> adapters; reports stand alone (DESIGN.md, Rooms)."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
# Results, what words them for the terminal too, and what draws them at the end.
REPORTS = (
    *("schema", "causes", "growth", "waivers", "assemble", "text", "markdown", "write"),
    *("command", "power_schema", "power", "noise_schema", "noise"),
)
ROOMS = {
    "suites": ("suites", "harness", "adapters"),
    "harness": ("harness", "adapters", *(f"reports.{name}" for name in REPORTS)),
    "adapters": ("adapters",),
    "reports": ("reports",),
}
OURS = {*ROOMS, "tests", "conftest"}


def imported(source: str, package: str) -> Iterator[str]:
    """Every module that a file of `package` imports, wherever in the file it does so."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            base = ".".join([*above, *([node.module] if node.module else [])])
            # `from reports import render` imports a module, `from reports.schema import Case` a name of one.
            yield from (f"{base}.{alias.name}" for alias in node.names)


def forbidden(source: str, package: str) -> list[str]:
    """Our modules that a file of this package must not import."""
    allowed = ROOMS[package.split(".")[0]]
    return [
        name
        for name in imported(source, package)
        if name.split(".")[0] in OURS and not any(f"{name}.".startswith(f"{room}.") for room in allowed)
    ]


def files_of(room: str) -> list[Path]:
    """A room's source files; reports/out holds what runs wrote."""
    return [path for path in (ROOT / room).rglob("*.py") if (ROOT / "reports" / "out") not in path.parents]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_imports_only_what_it_may(room: str) -> None:
    """No file of a room reaches into a room that DESIGN.md keeps from it."""
    files = files_of(room)
    assert files
    found = {
        str(path.relative_to(ROOT)): bad
        for path in files
        if (bad := forbidden(path.read_text(), ".".join(path.parent.relative_to(ROOT).parts)))
    }
    assert found == {}


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("adapters", "from harness.workload import Prompt"),
        ("adapters", "import reports.schema"),
        ("harness", "import suites.test_ground"),
        ("harness.oracle", "from reports.render import render_html"),
        ("harness", "from reports import render"),
        ("harness", "from reports import schema, render"),
        ("harness.oracle", "from ...suites import test_ground"),
        ("reports", "from harness.history import History"),
        ("reports", "from adapters import base"),
        ("suites", "from reports.schema import Verdict"),
        ("suites", "from tests.histories import outcome"),
        ("reports", "def late():\n    import harness"),
        ("reports", "if TYPE_CHECKING:\n    from adapters.base import Token"),
    ],
)
def test_a_wrong_import_is_noticed(package: str, source: str) -> None:
    """Also relative, inside a function, for types only, or beside an allowed one."""
    assert len(forbidden(source, package)) == 1


@pytest.mark.parametrize(
    ("package", "source"),
    [
        ("suites", "from harness.lab import Lab\nfrom adapters.base import Capability"),
        ("harness", "from reports import schema\nfrom reports.write import write_all"),
        ("harness.oracle", "from .base import Oracle\nfrom ..workload import Prompt"),
        ("adapters", "from adapters import endpoint\nimport harness_of_somebody_else"),
        ("reports", "import json, msgspec\nfrom . import schema"),
    ],
)
def test_an_allowed_import_is_no_alarm(package: str, source: str) -> None:
    """Neither are other people's packages whose names begin like ours."""
    assert forbidden(source, package) == []
