"""The frozen list of a version's requirements: the tests and cells that a qualification must run.

`lists/` has one file for each released version; `coldproof freeze` writes it at the release, and it never changes. So a
checkout between releases has no list of its own version. Adding, changing or removing a test or a cell after a release
needs a new version, and `differences` finds such changes. The list has the cells of Coldproof's own engines only, so
that it does not depend on which other distributions are installed.
"""

from __future__ import annotations

import enum
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from packaging.version import Version

from coldproof.adapters.registry import ATTACHED, cell_type
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.judgement.collect import COUNTERS
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.options import UsageError
from coldproof.harness.selection.select import cells_for

LISTS = Path(__file__).resolve().parent / "lists"
FORMAT = 1


class Place(msgspec.Struct, frozen=True, order=True):
    """One test of a requirement in one cell. A qualification runs a set of places."""

    requirement: str
    test: str
    cell: str

    def __str__(self) -> str:
        return f"{self.requirement} ({self.test}) in {self.cell}"


class FrozenTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One test of a requirement. `source` is the SHA-256 of its source code with its decorators."""

    declared: Requirement
    test: str
    suite: str
    statement: str
    source: str


class FrozenList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The list of one version. Tests are in the order in which the suites declare them."""

    format: int = FORMAT
    version: str
    tests: tuple[FrozenTest, ...]
    cells: tuple[Cell, ...]

    def test(self, place: Place) -> FrozenTest | None:
        """Return the test of a place; None where the list does not have it."""
        return next((t for t in self.tests if (t.declared.id, t.test) == (place.requirement, place.test)), None)

    def cells_of(self, engine: str, worker: str, *, attached: bool = False) -> list[Cell]:
        """Return the cells that an engine can be started in. An attached server is one cell of its own."""
        return [ATTACHED] if attached else [cell for cell in self.cells if cell.fits(engine, worker)]

    def places(self, cells: list[Cell]) -> list[Place]:
        """Return the places to run if these are all the cells."""
        return [
            Place(test.declared.id, test.test, cell.name)
            for test in self.tests
            for cell in cells_for(test.declared, cells)
        ]


def list_path(version: str) -> Path:
    """Return the path of a version's list."""
    return LISTS / f"{version}.json"


def versions() -> list[str]:
    """Return all versions that have a list, the newest last."""
    return sorted((path.stem for path in LISTS.glob("*.json")), key=Version)


def read_frozen(version: str) -> tuple[FrozenList, str]:
    """Return a version's list and the SHA-256 of its file. Raises UsageError where it is missing or unreadable."""
    try:
        raw = list_path(version).read_bytes()
        return decode(raw), hashlib.sha256(raw).hexdigest()
    except OSError as problem:
        raise UsageError(f"version {version} has no frozen list of requirements") from problem
    except msgspec.MsgspecError as problem:
        raise UsageError(f"cannot read the frozen list of version {version}: {problem}") from problem


def decode(raw: bytes) -> FrozenList:
    """Return a list from its file's bytes. Each cell is of its engine's own class. Raises msgspec.MsgspecError."""
    fields = msgspec.json.decode(raw, type=dict[str, Any])
    cells = msgspec.convert(fields.get("cells"), type=list[dict[str, Any]])
    of_engine = tuple(msgspec.convert(cell, type=cell_type(cell.get("engine", ""))) for cell in cells)
    tests = msgspec.convert({**fields, "cells": []}, type=FrozenList)
    for test in tests.tests:
        for name in (*test.declared.shows, *test.declared.shows_where.values()):
            if name not in COUNTERS:
                raise msgspec.ValidationError(f"{test.declared.id} requires unknown evidence: {name!r}")
    return msgspec.structs.replace(tests, cells=of_engine)


def current_list() -> tuple[FrozenList, str]:
    """Return the newest list and its digest; it is the list of this checkout. Raises UsageError before a release."""
    known = versions()
    if not known:
        raise UsageError(
            "this Coldproof is not a release and has no frozen list of requirements: check out a release, or run "
            "`coldproof freeze` in a checkout and commit the list"
        )
    return read_frozen(known[-1])


def encode(frozen: FrozenList) -> bytes:
    """Return the bytes of a list's file. Equal lists have equal bytes."""
    return msgspec.json.format(msgspec.json.encode(frozen, order="deterministic"), indent=1) + b"\n"


class Change(enum.Enum):
    """How a test or cell differs from the frozen list."""

    REMOVED = enum.auto()
    ADDED = enum.auto()
    CHANGED = enum.auto()


@dataclass(frozen=True, slots=True)
class Difference:
    """One test or cell that differs from the frozen list, described in one line."""

    line: str
    change: Change

    def __str__(self) -> str:
        return self.line


def differences(frozen: FrozenList, today: FrozenList) -> list[Difference]:
    """Return every test and cell that differs from the frozen list: tests first, sorted by their lines."""
    return [
        *_differing("test", _tests(frozen), _tests(today)),
        *_differing("cell", {cell.name: cell for cell in frozen.cells}, {cell.name: cell for cell in today.cells}),
    ]


def _tests(listed: FrozenList) -> dict[str, FrozenTest]:
    return {f"{test.declared.id} {test.test}": test for test in listed.tests}


def _differing(what: str, before: Mapping[str, msgspec.Struct], now: Mapping[str, msgspec.Struct]) -> list[Difference]:
    found = [Difference(f"{what} {name} was removed", Change.REMOVED) for name in before if name not in now]
    found += [Difference(f"{what} {name} was added", Change.ADDED) for name in now if name not in before]
    for name in before.keys() & now.keys():
        old, new = before[name], now[name]
        if other := [field for field in old.__struct_fields__ if getattr(old, field) != getattr(new, field)]:
            found.append(Difference(f"{what} {name} changed: {', '.join(other)}", Change.CHANGED))
    return sorted(found, key=str)
