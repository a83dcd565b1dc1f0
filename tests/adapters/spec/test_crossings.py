"""Crossed cells: each pair of features is in some cell, a name says which, and what is refused together is in none."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import pytest

from coldproof.adapters.registry import CELLS, ENGINES
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.crossings import JOINT, PAIRS, TRIPLES, Crossings, Dimension, Refusal, Value


def values(*names: str) -> tuple[Value, ...]:
    """Return values with these names."""
    return tuple(Value(name=name, arguments=(f"--{name}",)) for name in names)


def cell(name: str, chosen: Sequence[Value]) -> Cell:
    """Return a cell with the flags of these values."""
    return Cell(name=name, about="crossed", arguments=tuple(word for value in chosen for word in value.arguments))


SMALL = Crossings(
    dimensions=(
        Dimension(name="layers", values=values("full", "window", "state")),
        Dimension(name="tier", values=values("none", "host", "files")),
        Dimension(name="events", values=values("quiet", "events")),
    ),
    refusals=(Refusal(one=("files",), other=("state",), because="no files for states"),),
    cell=cell,
    point=lambda _cell: None,
    chosen={"few": ("window+host",)},
    strengths={"pairs": PAIRS, "triples": TRIPLES},
)


def test_a_name_has_its_values_in_their_order() -> None:
    """So that a cell has one name, and that of a named cell is none."""
    found = SMALL.named("window+host+events")
    assert found is not None
    assert found.arguments == ("--window", "--host", "--events")
    for name in ("host+window", "window", "window+none", "window+host+strange", "", "window+window"):
        assert SMALL.named(name) is None


def test_each_value_can_be_left_out() -> None:
    """The controls of a counterexample run the same workload without each of the features."""
    assert [(left_out, without.arguments) for left_out, without in SMALL.without_each("window+host")] == [
        ("window", ("--host",)),
        ("host", ("--window",)),
    ]
    assert list(SMALL.without_each("window")) == []


@pytest.mark.parametrize("strength", [PAIRS, TRIPLES])
def test_an_array_has_each_combination_that_is_possible(strength: int) -> None:
    """Those with one value that is no default, or with none, are cells already."""
    rows = [set(name.split(JOINT)) for name in SMALL.names(strength)]
    for chosen in itertools.combinations(SMALL.dimensions, strength):
        for combination in itertools.product(*([value.name for value in one.values[1:]] for one in chosen)):
            refused = SMALL.refused(combination)
            assert any(set(combination) <= row for row in rows) is not bool(refused), combination
    assert SMALL.names(strength) == SMALL.names(strength)


def test_a_profile_has_named_crossings_or_an_array() -> None:
    """And one that names neither has none."""
    assert [one.name for one in SMALL.cells("few")] == ["window+host"]
    assert [one.name for one in SMALL.cells("pairs")] == list(SMALL.names(PAIRS))
    assert SMALL.cells("other") == ()


def test_a_refused_pair_is_not_possible() -> None:
    """The report counts the pairs of which a run could have tested any."""
    possible = SMALL.possible_pairs()["layers, tier"]
    assert len(possible) == 3 * 3 - 1
    assert "state+files" not in possible
    assert SMALL.refused(("files", "state", "events")) == "no files for states"


@pytest.mark.parametrize("name", [name for name, spec in ENGINES.items() if spec.crossings is not None])
def test_the_cells_of_an_engine_have_all_its_pairs(name: str) -> None:
    """The named ones and those of the arrays. The cell of a name says the values that are in it."""
    crossings, own = ENGINES[name].crossings, [one for one in ENGINES[name].cells if not one.on_request]
    assert crossings is not None
    crossed = crossings.cells("release")
    had = {JOINT.join(pair) for one in (*own, *crossed) for pair in itertools.combinations(crossings.values_of(one), 2)}
    assert [pair for pairs in crossings.possible_pairs().values() for pair in pairs if pair not in had] == []
    for one in crossed:
        told = [value.name for value in crossings.values(one.name)]
        assert [value for value in crossings.values_of(one) if value in told] == told
        assert CELLS[one.name] == one
    assert not set(CELLS) & {one.name for one in crossed}


@pytest.mark.parametrize("name", [name for name, spec in ENGINES.items() if spec.crossings is not None])
def test_each_side_of_a_refusal_is_of_one_dimension(name: str) -> None:
    """An array would leave out the values of another one."""
    crossings = ENGINES[name].crossings
    assert crossings is not None
    values = [{value.name for value in one.values} for one in crossings.dimensions]
    for refusal in crossings.refusals:
        for side in (refusal.one, refusal.other):
            assert any(set(side) <= names for names in values), side


def test_names_of_no_cell_are_unknown() -> None:
    """A crossed cell is made when it is asked for; another name is not."""
    assert "window+tier-offload" in CELLS
    assert CELLS.get("tier-offload+window") is None
    with pytest.raises(KeyError):
        CELLS["window+strange"]
