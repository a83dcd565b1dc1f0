"""A cell that is opened starts fresh engines early only for failures that its own requirements can have."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.declared_requirements import declared_requirements

from coldproof.harness.session.conductor import ConformanceRun
from coldproof.harness.session.trials import RunPlan

GROUND, SALTS, RESETS = (declared_requirements()[name] for name in ("GROUND-1", "SALT-1", "CTRL-1"))
EXPECTED = [("here", GROUND), ("here", SALTS), ("there", RESETS)]


def orders(
    *issues: str, same_mixtures: bool = True, ended: bool = False, waived: tuple[str, ...] = (), cell: str = "here"
) -> list[bool]:
    """Return the orders of a cell with these known issues, named by their requirements: with caching or without.

    `waived`: the traits of requirements whose counterexamples are waived without a replay.
    """
    made: list[bool] = []
    engines = SimpleNamespace(
        cell=SimpleNamespace(name=cell),
        calibration=SimpleNamespace(mixtures={"adapters": same_mixtures}),
        oracle_engine=object(),
        engine=SimpleNamespace(version="1.0"),
        ended=ended,
        standby=SimpleNamespace(order=lambda *, caching: made.append(caching)),
    )
    run = SimpleNamespace(
        plan=RunPlan(EXPECTED),
        options=SimpleNamespace(waives_at_once=lambda suits: suits in waived),
        issues=[SimpleNamespace(requirement=name) for name in issues],
        waivers=lambda _: SimpleNamespace(in_force=lambda _: True),
    )
    ConformanceRun.order_standby(cast(Any, run), cast(Any, engines))
    return made


def test_a_known_issue_of_a_requirement_of_the_cell_orders_an_engine() -> None:
    """It is ordered once, however many issues there are."""
    assert orders("SALT-1", "GROUND-1") == [True]


@pytest.mark.parametrize("issues", [(), ("CTRL-1",), ("LORA-1",)])
def test_issues_of_other_cells_and_of_requirements_that_do_not_run_order_nothing(issues: tuple[str, ...]) -> None:
    """They cannot occur here."""
    assert orders(*issues) == []


def test_mixtures_that_differ_order_an_engine_without_a_cache() -> None:
    """Only the requirement about the engine without its cache needs it."""
    assert orders(same_mixtures=False) == [False]
    assert orders(same_mixtures=False, cell="there") == []


def test_what_is_waived_without_a_replay_orders_nothing() -> None:
    """The same holds for an engine that has ended."""
    assert orders("SALT-1", waived=(SALTS.suits,)) == []
    assert orders(same_mixtures=False, waived=(GROUND.suits,)) == []
    assert orders("SALT-1", ended=True) == []
