"""How an engine ends. These come last of an engine's; whoever wants it next has a new one."""

from __future__ import annotations

import pytest
from contract.rules import asked, hold, is_error, need, serve

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.engine import EngineDied, EngineError


def test_a_stop_in_the_midst_ends_every_request(engine: CheckedEngine) -> None:
    """The harness stops an engine that hangs: each request is over then, with what became of it."""
    need(engine, Capability.SPAWNABLE, Capability.STREAMING)  # without tokens to tell of there is nothing in between
    tokens = engine.shape.max_model_tokens - 100
    served = serve(engine, *(asked(engine, tokens=tokens) for _ in range(3)), between=engine.stop)
    hold(len(served) == 3, "Engine.serve", "return what became of each, also where the engine is stopped", served)
    hold(any(is_error(one.result) for one in served), "Engine.stop", "what was running ends with an error", served)
    hold(engine.alive() is False, "Engine.alive", "False once the engine is stopped", engine.alive())


def test_after_its_end_an_engine_says_so(stopped: CheckedEngine) -> None:
    """Twice stopped is stopped; every question then is an EngineError, for the harness goes on with a new one."""
    need(stopped, Capability.SPAWNABLE)
    stopped.stop()
    hold(stopped.alive() is False, "Engine.alive", "False once the engine is stopped", stopped.alive())
    with pytest.raises(EngineDied):
        stopped.complete(asked(stopped))
    try:
        served = serve(stopped, asked(stopped))
    except EngineError:
        served = []
    hold(all(is_error(one.result) for one in served), "Engine.serve", "nothing answers for a stopped engine", served)
    tail = stopped.log_tail()
    hold(isinstance(tail, str), "Engine.log_tail", "can be read when the engine is gone", tail)
