"""Reads from pytest's options which engine, cells and tests a run has.

Cells are named configurations of engines. A cell declares traits, and a requirement those with which it can be
exercised; it runs in each chosen cell that has one of them. A requirement that suits no chosen cell still runs in the
first one, and its verdict there says which evidence is missing, so that no requirement is dropped silently.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from pathlib import Path

import pytest

from coldproof.adapters.registry import ATTACHED, CELLS, ENGINES, attached, default_engine
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.case.load import load_case
from coldproof.harness.judgement.requirement import Requirement
from coldproof.harness.judgement.trial import Trial
from coldproof.harness.options import FINGERPRINT, PROFILES, UsageError

LAYER_CELLS = pytest.StashKey[tuple[str, ...]]()  # cells of a layer beside the profile's


def engine_name(config: pytest.Config) -> str:
    """Return the engine's name.

    Without --engine, a replayed case uses the engine of the case, unless that is one of the default engines.
    """
    name, replay = config.getoption("--engine"), config.getoption("--replay")
    if name is not None:
        return str(name)
    engine_of_case = ENGINES.get(load_case(Path(replay), follow=True)[0].engine) if replay is not None else None
    if engine_of_case is not None and not engine_of_case.default_for:
        return engine_of_case.name
    return default_engine(config.getoption("--worker"), attached=bool(config.getoption("--engine-url"))).name


def is_fingerprint(config: pytest.Config) -> bool:
    """Return whether the engine runs without a model."""
    return bool(config.getoption("--worker") == FINGERPRINT)


def selected_cells(config: pytest.Config) -> list[Cell]:
    """Return the chosen cells, or the cell of a replayed case. An attached server is one cell. Raises UsageError."""
    replay = config.getoption("--replay")
    case = load_case(Path(replay), follow=True)[0] if replay is not None else None
    engine, worker = engine_name(config), config.getoption("--worker")
    given = config.getoption("--cells")
    if attached(engine, config.getoption("--engine-url")) is not None:
        if given not in (None, ATTACHED.name):
            raise UsageError(f"--cells {given}: an attached server is one cell, as it runs; remove --cells")
        return [ATTACHED]
    if case is not None and given not in (None, case.cell):
        raise UsageError(f"--cells {given}: the case is replayed in its own cell, {case.cell}; remove --cells")
    if case is not None and case.cell == ATTACHED.name:
        return list(ENGINES[engine].cells[:1]) if engine in ENGINES else []  # replayed on our engine
    cells = cells_named((case.cell,) if case is not None else selected_cell_names(config))
    check_cells(cells, engine=engine, worker=worker)
    for cell in cells:
        if not cell.installed:
            raise UsageError(f"cell {cell.name!r} needs the package {cell.package!r}, which is not installed")
    return cells


def cells_named(names: tuple[str, ...]) -> list[Cell]:
    """Return the cells with these names. Raises UsageError for an unknown name."""
    unknown = [name for name in names if name not in CELLS]
    if unknown:
        raise UsageError(f"unknown cell {unknown[0]!r}; --cells list prints all cells")
    return [CELLS[name] for name in names]


def listed_names(option: str, text: str) -> tuple[str, ...]:
    """Return the names in an option, separated by commas. Raises UsageError for an empty one, and for one twice."""
    names = tuple(text.split(","))
    if "" in names:
        raise UsageError(f"{option} {text!r} has an empty name; separate names by single commas")
    twice = next((name for at, name in enumerate(names) if name in names[:at]), None)
    if twice is not None:
        raise UsageError(f"{option} {text!r} names {twice!r} twice")
    return names


def cells_for(requirement: Requirement, cells: list[Cell]) -> list[Cell]:
    """Return the chosen cells that suit a requirement, or the first chosen cell if none does."""
    return [cell for cell in cells if cell.suits(requirement.suits)] or cells[:1]


def format_cells(engine: str | None = None) -> str:
    """Return one line for each cell, or for each cell of one engine. Raises UsageError if there is none."""
    if engine is not None:
        check_choice("engine", engine, ENGINES)
    workers = ENGINES[engine].workers if engine is not None else ()
    shown = {n: cell for n, cell in CELLS.items() if engine is None or any(cell.fits(engine, w) for w in workers)}
    if not shown:
        raise UsageError(f"engine {engine!r} has no cells")
    width = max(len(name) for name in shown)
    return "\n".join(f"{name:<{width}}  {cell.about}" for name, cell in shown.items())


def check_choice(what: str, choice: str, known: Collection[str]) -> None:
    """Raise UsageError for an unknown choice."""
    if choice not in known:
        raise UsageError(f"unknown {what} {choice!r}: choose one of {', '.join(known)}")


def check_cells(cells: Sequence[Cell], *, engine: str, worker: str) -> None:
    """Raise UsageError if the engine cannot run one of the cells. Does not check what is installed."""
    for cell in cells:
        if obstacle := cell.obstacle(engine, worker):
            raise UsageError(obstacle)


def selected_cell_names(config: pytest.Config) -> tuple[str, ...]:
    """Return the names in --cells, or the engine's cells for the profile. If it names none for this profile, return all
    of its cells but those that run on request only.
    """
    names_option = config.getoption("--cells")
    if names_option is not None:
        return listed_names("--cells", names_option)
    engine, worker = engine_name(config), config.getoption("--worker")
    names = ENGINES[engine].profile_cells(config.getoption("--profile"), worker) if engine in ENGINES else ()
    fitting = [cell for cell in CELLS.values() if cell.fits(engine, worker)]
    more = config.stash.get(LAYER_CELLS, ())
    every = () if names else tuple(cell.name for cell in fitting if cell.installed and not cell.on_request)
    crossed = ENGINES[engine].crossed_cells(config.getoption("--profile"), worker) if engine in ENGINES else ()
    listed = (cell for cell in fitting if cell.name in (*every, *names, *more))
    return tuple(cell.name for cell in (*listed, *crossed))


def selected_requirements(config: pytest.Config) -> str | None:
    """Return --requirements, or the profile's default; None: all. A replayed case has no default."""
    ids = config.getoption("--requirements")
    profile = PROFILES.get(config.getoption("--profile"))
    if ids is not None or profile is None or config.getoption("--replay") is not None:
        return None if ids is None else str(ids)
    return profile.requirements


def requirement_of(item: pytest.Item) -> Requirement | None:
    """Return the requirement that a test checks; None for a test without one."""
    mark = item.get_closest_marker("requirement")
    return mark.args[0] if mark else None


def trial_of(item: pytest.Item) -> Trial | None:
    """Return a new trial of a collected test, whose docstring states the requirement; None for one without any."""
    requirement = requirement_of(item)
    if requirement is None:
        return None
    statement = getattr(getattr(item, "function", None), "__doc__", None) or ""
    return Trial(requirement, cell_name(item), statement.strip(), test_name(item))


def cell_name(item: pytest.Item) -> str:
    """Return the name of the cell in which a collected test runs."""
    callspec = getattr(item, "callspec", None)
    cell = callspec.params["sut"] if callspec else ATTACHED
    return str(cell.name)


def is_selected(item: pytest.Item, names: Sequence[str]) -> bool:
    """Return whether a test's requirement is named: by its id, such as LORA-3, or by its area, such as LORA."""
    requirement = requirement_of(item)
    return requirement is not None and any(requirement.id in (n, f"{n}-{requirement.id.split('-')[-1]}") for n in names)


def test_name(item: pytest.Item) -> str:
    """Return the name of the test function, without its parameters."""
    return str(getattr(item, "originalname", item.name))


def area_of(item: pytest.Item) -> str:
    """Return the title of the area of the test's requirement, which its module gives as AREA; empty without one."""
    return str(getattr(getattr(item, "module", None), "AREA", ""))
