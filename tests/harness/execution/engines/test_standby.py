"""Fresh engines are ordered once, handed over once, and never left running."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any, cast

import pytest

from coldproof.adapters.protocol.engine import EngineStartError
from coldproof.adapters.registry import CELLS
from coldproof.harness.execution.engines.pool import EnginePool
from coldproof.harness.execution.engines.standby import Standby


class Starts:
    """A stand-in for a pool that records which engines are started and closed."""

    def __init__(self, *, attached: bool = False, room: bool = True, fails: bool = False) -> None:
        self.options = SimpleNamespace(attached=attached)
        self.room, self.fails = room, fails
        self.started: list[bool] = []
        self.closed: list[object] = []
        self.finish: Callable[[Future[Any]], None] | None = None

    def has_room(self) -> bool:
        """Return whether there is room."""
        return self.room

    def open_in_background(self, cell: object, *, caching: bool, purpose: str) -> Future[Any]:
        """Return an engine that is ready at once, or fails to start."""
        assert (cell, purpose) == (CELLS["default"], "fresh")
        self.started.append(caching)
        future: Future[Any] = Future()
        if self.fails:
            future.set_exception(EngineStartError("no memory"))
        else:
            future.set_result(f"engine {len(self.started)}")
        return future

    def close_engine(self, engine: object) -> None:
        """Record the engine."""
        self.closed.append(engine)


def standby(session: Starts) -> Standby:
    """Return a standby for the default cell."""
    return Standby(cast(EnginePool, session), CELLS["default"])


def test_one_engine_of_each_kind_is_ordered() -> None:
    """Ordering a kind again does not start another engine."""
    session = Starts()
    ready = standby(session)
    for caching in (True, True, False, True):
        ready.order(caching=caching)
    assert session.started == [True, False]


def test_what_was_ordered_is_handed_over_once() -> None:
    """The next engine is started when it is needed, because an engine that has answered is not fresh."""
    session = Starts()
    ready = standby(session)
    ready.order(caching=True)
    assert [ready.take(caching=True), ready.take(caching=True)] == [("engine 1", ""), ("engine 2", "")]
    assert session.started == [True, True]


def test_the_kind_that_was_not_ordered_is_started() -> None:
    """The kinds are with and without a cache."""
    session = Starts()
    ready = standby(session)
    ready.order(caching=True)
    assert ready.take(caching=False) == ("engine 2", "")
    assert session.started == [True, False]


def test_an_engine_that_does_not_start_has_a_reason() -> None:
    """The failed start is returned as a reason and not raised."""
    assert standby(Starts(fails=True)).take(caching=True) == (None, "no memory")


def test_where_memory_is_short_nothing_is_ordered_ahead() -> None:
    """The engine is started when it is needed."""
    session = Starts(room=False)
    ready = standby(session)
    ready.order(caching=True)
    assert session.started == []
    assert ready.take(caching=True) == ("engine 1", "")


def test_an_attached_server_is_not_started_again() -> None:
    """There is no fresh engine of an attached server."""
    session = Starts(attached=True)
    ready = standby(session)
    ready.order(caching=True)
    assert ready.take(caching=True) == (None, "")
    assert session.started == []


@pytest.mark.parametrize("fails", [False, True])
def test_unused_engines_are_stopped(fails: bool) -> None:
    """Engines that failed to start need not be stopped."""
    session = Starts(fails=fails)
    ready = standby(session)
    ready.order(caching=True)
    ready.order(caching=False)
    ready.discard()
    assert session.closed == ([] if fails else ["engine 1", "engine 2"])
    ready.discard()
    assert len(session.closed) in (0, 2)


def test_one_by_one_each_ends_when_the_next_is_requested() -> None:
    """The last one is stopped at the end of the block."""
    session = Starts()
    with standby(session).one_by_one(caching=True) as another:
        assert another() == ("engine 1", "")
        assert session.closed == []
        assert another() == ("engine 2", "")
        assert session.closed == ["engine 1"]
    assert session.closed == ["engine 1", "engine 2"]


def test_one_by_one_reports_a_failed_start() -> None:
    """Then there is no engine to stop."""
    session = Starts(fails=True)
    with standby(session).one_by_one(caching=True) as another:
        assert another() == (None, "no memory")
    assert session.closed == []
