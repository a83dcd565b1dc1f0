"""The frozen list of a version's requirements: which tests in which cells make a qualification.

One file a version in `lists/`; it is made by `python -m harness.qualify.freeze` and never changes once that version is
released. Whoever adds, changes or drops a test or a cell needs another version: `differences` says so.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from pathlib import Path

import msgspec
from packaging.version import Version

from harness.cell import Cell
from harness.cells import ATTACHED, cells_for
from harness.options import UsageError
from harness.requirement import Requirement

LISTS = Path(__file__).resolve().parent / "lists"
FORMAT = 1


class Place(msgspec.Struct, frozen=True, order=True):
    """One test of a requirement in one cell: what a qualification is made of."""

    requirement: str
    test: str
    cell: str

    def __str__(self) -> str:
        return f"{self.requirement} ({self.test}) in {self.cell}"


class FrozenTest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A requirement's test as it was declared. `source`: the digest of its source with its decorators."""

    declared: Requirement
    test: str
    suite: str
    statement: str
    source: str


class FrozenList(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """All of a version, in the order in which the suites declare them."""

    format: int = FORMAT
    version: str
    tests: tuple[FrozenTest, ...]
    cells: tuple[Cell, ...]

    def test(self, place: Place) -> FrozenTest | None:
        """The test of a place, if the list has it."""
        return next((t for t in self.tests if (t.declared.id, t.test) == (place.requirement, place.test)), None)

    def cells_of(self, engine: str, worker: str, *, attached: bool = False) -> list[Cell]:
        """Every cell that an engine can be started in; a server of somebody else's is its own."""
        if attached:
            return [ATTACHED]
        return [cell for cell in self.cells if cell.fits(engine) and cell.is_for(worker == "fingerprint")]

    def places(self, cells: list[Cell]) -> list[Place]:
        """What is to be run where these are all the cells."""
        return [
            Place(test.declared.id, test.test, cell.name)
            for test in self.tests
            for cell in cells_for(test.declared.id, cells)
        ]


def path_of(version: str) -> Path:
    """Where a version's list is kept."""
    return LISTS / f"{version}.json"


def versions() -> list[str]:
    """All versions that have a list, the newest last."""
    return sorted((path.stem for path in LISTS.glob("*.json")), key=Version)


def read_frozen(version: str) -> tuple[FrozenList, str]:
    """A version's list and the digest of its file. Raises UsageError where there is none."""
    try:
        raw = path_of(version).read_bytes()
        return msgspec.json.decode(raw, type=FrozenList), hashlib.sha256(raw).hexdigest()
    except OSError as problem:
        raise UsageError(f"version {version} has no list of its requirements") from problem
    except msgspec.MsgspecError as problem:
        raise UsageError(f"the list of the requirements of version {version} cannot be read: {problem}") from problem


def current() -> tuple[FrozenList, str]:
    """The newest list: this checkout's own. Raises UsageError where there is none."""
    known = versions()
    if not known:
        raise UsageError("no requirements are frozen: python -m harness.qualify.freeze")
    return read_frozen(known[-1])


def encode(frozen: FrozenList) -> bytes:
    """The file of a list: what is equal has equal bytes."""
    return msgspec.json.format(msgspec.json.encode(frozen, order="deterministic"), indent=1) + b"\n"


def differences(frozen: FrozenList, today: FrozenList) -> list[str]:
    """What the suites and cells of today have otherwise than the list, a line each."""
    return [
        *_differing("test", _tests(frozen), _tests(today)),
        *_differing("cell", {cell.name: cell for cell in frozen.cells}, {cell.name: cell for cell in today.cells}),
    ]


def _tests(listed: FrozenList) -> dict[str, FrozenTest]:
    return {f"{test.declared.id} {test.test}": test for test in listed.tests}


def _differing(what: str, before: Mapping[str, msgspec.Struct], now: Mapping[str, msgspec.Struct]) -> list[str]:
    lines = [f"{what} {name} is gone" for name in before if name not in now]
    lines += [f"{what} {name} is new" for name in now if name not in before]
    for name in before.keys() & now.keys():
        other = [
            field for field in before[name].__struct_fields__ if _field(before, name, field) != _field(now, name, field)
        ]
        lines += [f"{what} {name} has another {', '.join(other)}"] if other else []
    return sorted(lines)


def _field(listed: Mapping[str, msgspec.Struct], name: str, field: str) -> object:
    return getattr(listed[name], field)


def not_run(wanted: Collection[Place], there: Collection[Place]) -> list[Place]:
    """What a run leaves out, in the list's order."""
    have = set(there)
    return [place for place in wanted if place not in have]
