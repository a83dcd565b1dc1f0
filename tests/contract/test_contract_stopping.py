"""How an engine ends. These tests come last for each engine; a later test gets a new one."""

from __future__ import annotations

import pytest
from contract.rules import check, is_error, need, new_request, serve

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, EngineError


def test_a_stop_in_the_midst_ends_every_request(engine: CheckedEngine) -> None:
    """The harness stops an engine that hangs, so each running request must end with a result."""
    need(engine, Capability.SPAWNABLE, Capability.STREAMING)  # without tokens to tell of there is nothing in between
    tokens = engine.shape.max_model_tokens - 100
    served = serve(engine, *(new_request(engine, tokens=tokens) for _ in range(3)), between=engine.stop)
    check(len(served) == 3, "Engine.serve", "return what became of each, also where the engine is stopped", served)
    check(any(is_error(one.result) for one in served), "Engine.stop", "what was running ends with an error", served)
    check(engine.alive() is False, "Engine.alive", "False once the engine is stopped", engine.alive())


def test_a_stopped_engine_reports_its_end(stopped: CheckedEngine) -> None:
    """A second stop does nothing. Every later call raises an EngineError, so that the harness continues with a new
    engine.
    """
    need(stopped, Capability.SPAWNABLE)
    stopped.stop()
    check(stopped.alive() is False, "Engine.alive", "False once the engine is stopped", stopped.alive())
    with pytest.raises(EngineDied):
        stopped.complete(new_request(stopped))
    try:
        served = serve(stopped, new_request(stopped))
    except EngineError:
        served = []
    check(all(is_error(one.result) for one in served), "Engine.serve", "nothing answers for a stopped engine", served)
    tail = stopped.log_tail()
    check(isinstance(tail, str), "Engine.log_tail", "can be read when the engine is gone", tail)
