"""Which engine each control runs on: a fresh one where starts are quick, one for many where they are not."""

from __future__ import annotations

from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, EngineStartError
from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell, EngineVariant
from coldproof.harness.execution.engines.standby import Standby
from coldproof.harness.proof.diagnose.control_engines import ControlEngines

DEFAULT, TIGHT = CELLS["default"], CELLS["tight"]
ROOMY = EngineVariant(name="a roomy pool", removes="a pool this small", cell=TIGHT)


class Engine:
    """A stand-in for an engine of a cell, which is alive until it is stopped or lost."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.up = cell, True

    def alive(self) -> bool:
        """Return whether the engine is up."""
        return self.up


class Pool:
    """A pool that starts stand-in engines and knows which of them are up."""

    def __init__(self, engine: str, *, attached: bool = False, refuses: bool = False) -> None:
        self.options = SimpleNamespace(attached=attached, quick=engine == "vllm-inproc")
        self.started: list[Engine] = []
        self.refuses = refuses

    def has_room(self) -> bool:
        """Return True: another engine always fits."""
        return True

    def open_in_background(self, cell: Cell, *, caching: bool, purpose: str) -> Future[Engine]:
        """Start an engine at once and return its future."""
        assert caching
        started: Future[Engine] = Future()
        try:
            started.set_result(self.open_engine(cell, purpose=purpose))
        except EngineStartError as problem:
            started.set_exception(problem)
        return started

    def open_engine(self, cell: Cell, *, purpose: str) -> Engine:
        """Return a new engine, or raise the reason why none starts."""
        assert purpose in ("control", "fresh")
        if self.refuses:
            raise EngineStartError("no room")
        self.started.append(Engine(cell))
        return self.started[-1]

    def close_engine(self, engine: Engine) -> None:
        """Stop an engine."""
        engine.up = False

    def up(self) -> list[Engine]:
        """Return the engines that are up."""
        return [engine for engine in self.started if engine.up]


def engines(pool: Pool, tested: Engine | None = None) -> ControlEngines:
    """Return the control engines of a pool for the default cell."""
    standby = Standby(cast(Any, pool), DEFAULT)
    return ControlEngines(cast(Any, pool), DEFAULT, cast(CheckedEngine, tested or Engine(DEFAULT)), standby)


@pytest.mark.parametrize(("engine", "starts"), [("vllm-inproc", 3), ("vllm", 1)])
def test_each_control_has_its_own_engine_if_starts_are_quick(engine: str, starts: int) -> None:
    """There is never more than one engine at a time, and none at the end."""
    pool = Pool(engine)
    with engines(pool) as given:
        for _ in range(3):
            assert given.next() is cast(object, pool.started[-1])
            assert len(pool.up()) == 1
    assert len(pool.started) == starts
    assert pool.up() == []


def test_an_engine_that_is_lost_is_not_used_again() -> None:
    """A control after the loss gets a new engine, even over HTTP, where one engine serves many controls."""
    pool = Pool("vllm")
    with engines(pool) as given:
        given.next()
        pool.started[0].up = False
        given.next()
    assert len(pool.started) == 2


def test_a_variant_is_of_its_own_cell_and_serves_no_other_control() -> None:
    """The control after a variant gets an engine of the case's cell."""
    pool = Pool("vllm")
    with engines(pool) as given:
        given.next()
        given.variant(ROOMY)
        given.next()
    assert [engine.cell for engine in pool.started] == [DEFAULT, TIGHT, DEFAULT]


def test_an_attached_engine_serves_all_controls_and_is_left_running() -> None:
    """No engine is started beside an attached server, and its loss is an error that says so."""
    pool, tested = Pool("endpoint", attached=True), Engine(DEFAULT)
    with engines(pool, tested) as given:
        assert given.next() is given.next() is cast(object, tested)
    assert tested.up
    assert pool.started == []
    tested.up = False
    with engines(pool, tested) as given, pytest.raises(EngineDied, match="attached"):
        given.next()


def test_an_engine_that_does_not_start_leaves_none_behind() -> None:
    """The error passes on the reason, and no engine is current."""
    pool = Pool("vllm", refuses=True)
    with engines(pool) as given:
        for start in (given.next, lambda: given.variant(ROOMY)):
            with pytest.raises(EngineStartError, match="no room"):
                start()
            assert given.current is None


def test_an_engine_on_standby_is_used_first() -> None:
    """The standby engine has been starting since the case was confirmed, so no second one is started."""
    pool = Pool("vllm")
    with engines(pool) as given:
        given.standby.order(caching=True)
        assert given.next() is cast(object, pool.started[0])
    assert len(pool.started) == 1
