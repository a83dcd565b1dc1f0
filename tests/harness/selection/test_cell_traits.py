"""Cells and requirements meet in traits: each trait has both sides, so that none is misspelt or left over."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

import msgspec
import pytest
from support.declared_requirements import declared_requirements, declared_tests

from coldproof.adapters.protocol.cell_traits import CellTrait
from coldproof.adapters.registry import CELLS, ENGINES, OWN_CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.judgement.requirement import Requirement, requirement
from coldproof.harness.selection.select import cells_for

# PLAIN is the default of a requirement.
BOTH = msgspec.structs.replace(next(iter(declared_requirements().values())), suits=("images", CellTrait.HITS))
CROSSED = [one for spec in ENGINES.values() if spec.crossings is not None for one in spec.crossings.cells("smoke")]
OWN = (*OWN_CELLS.values(), *CROSSED)


def one_sided(had: Iterable[str], wanted: Iterable[str]) -> set[str]:
    """Return the traits that only cells have, or for which only requirements look."""
    return set(had) ^ set(wanted)


def traits_of(cells: Iterable[Cell]) -> set[str]:
    """Return all traits of these cells."""
    return {trait for cell in cells for trait in cell.traits or ()}


def wanted() -> dict[str, set[str]]:
    """Return the traits for which the requirements of each suite look, by suite."""
    found: dict[str, set[str]] = {}
    for one in declared_tests():
        found.setdefault(one.suite, set()).update(one.requirement.suits)
    return found


def shared_texts(by_suite: Mapping[str, Collection[str]]) -> set[str]:
    """Return the traits that are no members of CellTrait although several suites look for them."""
    every = [trait for traits in by_suite.values() for trait in traits if trait not in set(CellTrait)]
    return {trait for trait in every if every.count(trait) > 1}


def differing(requirements: Iterable[Requirement]) -> set[str]:
    """Return the ids of requirements whose tests look for different traits."""
    suits: dict[str, set[tuple[str, ...]]] = {}
    for one in requirements:
        suits.setdefault(one.id, set()).add(one.suits)
    return {name for name, found in suits.items() if len(found) > 1}


def test_each_trait_of_a_suite_is_one_of_some_cell_and_the_other_way_round() -> None:
    """Only Coldproof's own cells count, so that the suites alone depend on no other distribution."""
    looked_for = set().union(*wanted().values())
    assert one_sided(traits_of(OWN), looked_for) == set()
    assert set(CellTrait) <= looked_for


def test_cells_of_other_distributions_and_layers_have_known_traits() -> None:
    """A requirement looks for each of them."""
    looked_for = set().union(*wanted().values())
    layers = {trait for spec in ENGINES.values() for layer in spec.layers for trait in layer.traits or ()}
    assert (traits_of(CELLS.values()) | layers) - looked_for == set()


def test_a_trait_with_one_side_is_detected() -> None:
    """This holds for a misspelt trait of a cell, and for one that no cell has."""
    cell = Cell(name="it", about="misspelt", traits=("imagse", CellTrait.HITS))
    assert one_sided(traits_of([cell]), BOTH.suits) == {"imagse", "images"}


def test_a_trait_of_several_suites_is_a_member_of_the_vocabulary() -> None:
    """A text is of one suite, so that who changes it sees all requirements that look for it."""
    assert shared_texts(wanted()) == set()
    assert shared_texts({"test_a": {"images", CellTrait.HITS}, "test_b": {"images", CellTrait.HITS}}) == {"images"}


def test_all_tests_of_a_requirement_look_for_the_same_traits() -> None:
    """So the id of a requirement, as a fault or a known issue names it, has one meaning for cells."""
    assert differing(one.requirement for one in declared_tests()) == set()
    assert differing([BOTH, msgspec.structs.replace(BOTH, suits=("images",))]) == {BOTH.id}


def test_every_requirement_has_a_cell_that_suits_it() -> None:
    """Otherwise it could only ever end as not exercised."""
    requirements = declared_requirements()
    assert {n for n, one in requirements.items() if not any(c.suits(one.suits) for c in OWN)} == set()


def test_a_requirement_that_names_no_traits_runs_in_plain_cells() -> None:
    """A feature that needs nothing special of a cell needs no edit of cells."""
    made = requirement("NEW-1", "of a new feature", shows=(next(iter(BOTH.shows)),)).args[0]  # type: ignore[arg-type]
    assert [cell.name for cell in cells_for(made, list(CELLS.values()))] == [
        name for name, cell in CELLS.items() if CellTrait.PLAIN in (cell.traits or (CellTrait.PLAIN,))
    ]
    assert cells_for(made, [CELLS["default"], CELLS["tight"]]) == [CELLS["default"]]


@pytest.mark.parametrize("name", ENGINES)
def test_profiles_name_cells_that_the_engine_has(name: str) -> None:
    """Each worker that a profile names is one of the engine's, and at least one of the cells fits it."""
    spec = ENGINES[name]
    for cells_of in spec.profiles.values():
        for worker, names in cells_of.items():
            assert worker in spec.workers
            assert set(names) <= set(CELLS)
            assert any(CELLS[one].fits(name, worker) for one in names)
