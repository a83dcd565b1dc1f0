"""What a run consists of: which engine and cells the options mean, and which tests stay."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.cases import load_case
from harness.cell import Cell
from harness.cells import ATTACHED, CELLS, chosen
from harness.engines.kinds import KINDS, attached
from harness.options import PROFILES, UsageError
from harness.requirement import Requirement


def engine_of(config: pytest.Config) -> str:
    """The engine's adapter; a replayed case's own, where it is not vLLM. Without a model the server is what takes the
    time: by default it is left out then.
    """
    given, replay = config.getoption("--engine"), config.getoption("--replay")
    if given is not None:
        return str(given)
    if replay is not None and (found_on := load_case(Path(replay))[0].engine) in KINDS:
        return found_on
    if config.getoption("--engine-url"):
        return "endpoint"
    return "vllm-inproc" if is_fingerprint(config) else "vllm"


def is_fingerprint(config: pytest.Config) -> bool:
    """Whether the engine is to run without a model."""
    return bool(config.getoption("--worker") == "fingerprint")


def cells_of(config: pytest.Config) -> list[Cell]:
    """The chosen cells, or the replayed case's; an attached server is its own. Raises UsageError."""
    replay = config.getoption("--replay")
    case = load_case(Path(replay))[0] if replay is not None else None
    engine, fingerprint = engine_of(config), is_fingerprint(config)
    if attached(engine, config.getoption("--engine-url")) is not None:
        return [ATTACHED]
    if case is not None and case.cell == ATTACHED.name:
        return chosen(("default",))  # found on somebody's server, tried on ours
    cells = chosen((case.cell,) if case is not None else cell_names(config))
    check_cells(cells, engine=engine, fingerprint=fingerprint)
    lacking = [cell for cell in cells if not cell.installed]
    if lacking:
        raise UsageError(f"cell {lacking[0].name!r} needs the package {lacking[0].package!r}, which is not installed")
    return cells


def check_cells(cells: Sequence[Cell], *, engine: str, fingerprint: bool) -> None:
    """Raise UsageError for a cell that an engine cannot be started in, whatever is installed."""
    other = [cell.name for cell in cells if not cell.is_for(fingerprint)]
    if other and not fingerprint:
        raise UsageError(f"cell {other[0]!r} has layers that no small model has: add --worker fingerprint")
    if other:
        raise UsageError(f"cell {other[0]!r} is about numbers, and the fingerprint worker computes none")
    others = [cell for cell in cells if cell.engine != ("vllm" if engine == "vllm-inproc" else engine)]
    if others:
        raise UsageError(f"cell {others[0].name!r} is one of {others[0].engine}'s, and the engine is {engine}")
    apart = [cell.name for cell in cells if not cell.fits(engine)]
    if apart:
        raise UsageError(f"cell {apart[0]!r} needs a server: leave out --engine vllm-inproc, or choose other cells")


def cell_names(config: pytest.Config) -> tuple[str, ...]:
    """The names given, or the profile's cells; a profile that names none wants them all."""
    given = config.getoption("--cells")
    if given is not None:
        return tuple(given.split(","))
    profile = PROFILES.get(config.getoption("--profile"))  # an unknown one is reported with the other options
    engine, fingerprint = engine_of(config), is_fingerprint(config)
    names = (profile.fingerprint_cells if fingerprint else profile.cells) if profile else ()
    fitting = [cell for cell in CELLS.values() if cell.fits(engine) and cell.is_for(fingerprint)]
    if not any(cell.name in names for cell in fitting):
        names = ()
    return tuple(cell.name for cell in fitting if (not names and cell.installed) or cell.name in names)


def wanted_requirements(config: pytest.Config) -> str | None:
    """The requirements given, or the profile's; None: all. A replayed case has its own."""
    given = config.getoption("--requirements")
    profile = PROFILES.get(config.getoption("--profile"))
    if given is not None or profile is None or config.getoption("--replay") is not None:
        return None if given is None else str(given)
    return profile.requirements


def requirement_of(item: pytest.Item) -> Requirement | None:
    """The requirement that a test stands for."""
    mark = item.get_closest_marker("requirement")
    return mark.args[0] if mark else None


def cell_name(item: pytest.Item) -> str:
    """The cell that a collected test is for."""
    callspec = getattr(item, "callspec", None)
    cell = callspec.params["lab"] if callspec else ATTACHED
    return str(cell.name)


def is_wanted(item: pytest.Item, names: Sequence[str]) -> bool:
    """Whether a test's requirement is one of those, or of an area of those."""
    requirement = requirement_of(item)
    return requirement is not None and any(requirement.id in (n, f"{n}-{requirement.id.split('-')[-1]}") for n in names)


def test_name(item: pytest.Item) -> str:
    """The test function's name without its parameters."""
    return str(getattr(item, "originalname", item.name))


def statement_of(item: pytest.Item) -> str:
    """The test's docstring: the requirement."""
    function = getattr(item, "function", None)
    return (getattr(function, "__doc__", None) or "").strip()
