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
    """One in name: of a cell, alive until it is stopped or lost."""

    def __init__(self, cell: Cell) -> None:
        self.cell, self.up = cell, True

    def alive(self) -> bool:
        """Whether it is up."""
        return self.up


class Pool:
    """Starts engines in name only, and knows which run."""

    def __init__(self, engine: str, *, attached: bool = False, refuses: bool = False) -> None:
        self.options = SimpleNamespace(attached=attached, quick=engine == "vllm-inproc")
        self.started: list[Engine] = []
        self.refuses = refuses

    def has_room(self) -> bool:
        """There is."""
        return True

    def open_in_background(self, cell: Cell, *, caching: bool, purpose: str) -> Future[Engine]:
        """At once."""
        assert caching
        started: Future[Engine] = Future()
        try:
            started.set_result(self.open_engine(cell, purpose=purpose))
        except EngineStartError as problem:
            started.set_exception(problem)
        return started

    def open_engine(self, cell: Cell, *, purpose: str) -> Engine:
        """A new one, or the reason why there is none."""
        assert purpose in ("control", "fresh")
        if self.refuses:
            raise EngineStartError("no room")
        self.started.append(Engine(cell))
        return self.started[-1]

    def close_engine(self, engine: Engine) -> None:
        """Stop one."""
        engine.up = False

    def up(self) -> list[Engine]:
        """Those that run."""
        return [engine for engine in self.started if engine.up]


def engines(pool: Pool, tested: Engine | None = None) -> ControlEngines:
    """Control engines of a pool for the default cell."""
    standby = Standby(cast(Any, pool), DEFAULT)
    return ControlEngines(cast(Any, pool), DEFAULT, cast(CheckedEngine, tested or Engine(DEFAULT)), standby)


@pytest.mark.parametrize(("engine", "starts"), [("vllm-inproc", 3), ("vllm", 1)])
def test_each_control_has_its_own_where_that_is_quick(engine: str, starts: int) -> None:
    """Never more than one at a time, and none when it is over."""
    pool = Pool(engine)
    with engines(pool) as given:
        for _ in range(3):
            assert given.next() is cast(object, pool.started[-1])
            assert len(pool.up()) == 1
    assert len(pool.started) == starts
    assert pool.up() == []


def test_one_that_is_lost_is_not_given_again() -> None:
    """Over HTTP too."""
    pool = Pool("vllm")
    with engines(pool) as given:
        given.next()
        pool.started[0].up = False
        given.next()
    assert len(pool.started) == 2


def test_a_variant_is_of_its_own_cell_and_serves_no_other_control() -> None:
    """What comes after it gets an engine of the case's kind."""
    pool = Pool("vllm")
    with engines(pool) as given:
        given.next()
        given.variant(ROOMY)
        given.next()
    assert [engine.cell for engine in pool.started] == [DEFAULT, TIGHT, DEFAULT]


def test_an_attached_engine_serves_them_all_and_is_left_running() -> None:
    """Nothing is started beside somebody's server; when it is gone, that is said."""
    pool, tested = Pool("endpoint", attached=True), Engine(DEFAULT)
    with engines(pool, tested) as given:
        assert given.next() is given.next() is cast(object, tested)
    assert tested.up
    assert pool.started == []
    tested.up = False
    with engines(pool, tested) as given, pytest.raises(EngineDied, match="attached"):
        given.next()


def test_one_that_does_not_start_leaves_none_behind() -> None:
    """The reason is passed on."""
    pool = Pool("vllm", refuses=True)
    with engines(pool) as given:
        for start in (given.next, lambda: given.variant(ROOMY)):
            with pytest.raises(EngineStartError, match="no room"):
                start()
            assert given.current is None


def test_one_that_was_ordered_is_taken() -> None:
    """It is on its way since the case was confirmed."""
    pool = Pool("vllm")
    with engines(pool) as given:
        given.standby.order(caching=True)
        assert given.next() is cast(object, pool.started[0])
    assert len(pool.started) == 1
