"""Several engines in one process each find their own values in vLLM's global variables."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from coldproof.adapters.vllm.inproc import own_globals
from coldproof.adapters.vllm.inproc.own_globals import CONNECTOR, ROOT_HASH, SCRATCH, OwnGlobals


class State(ModuleType):
    """A module with vLLM's variables."""

    _KV_CONNECTOR_AGENT: str | None = None
    _manager: str | None = None
    NONE_HASH: bytes


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    """Return a module that replaces vLLM's."""
    module = State("state_of_a_test")
    monkeypatch.setitem(sys.modules, "state_of_a_test", module)
    monkeypatch.setattr(own_globals, "CONNECTOR", ("state_of_a_test", CONNECTOR[1]))
    monkeypatch.setattr(own_globals, "ROOT_HASH", ("state_of_a_test", ROOT_HASH[1]))
    monkeypatch.setattr(own_globals, "SCRATCH", ("state_of_a_test", SCRATCH[1]))
    return module


def test_each_engine_keeps_what_its_start_has_created(state: State) -> None:
    """An engine without a connector finds none, whatever ran before it."""
    tiered, cold = OwnGlobals(), OwnGlobals()
    with tiered.active():
        state._KV_CONNECTOR_AGENT = "files"
    with cold.active():
        assert state._KV_CONNECTOR_AGENT is None
        with tiered.active():
            assert state._KV_CONNECTOR_AGENT == "files"
    assert state._KV_CONNECTOR_AGENT is None


def test_each_engine_computes_in_its_own_scratch_memory(state: State) -> None:
    """The start of the second engine replaces the global manager, which then has the size of that engine."""
    first, second = OwnGlobals(), OwnGlobals()
    for engine, memory in ((first, "large"), (second, "small")):
        with engine.active():
            state._manager = memory
    with first.active():
        assert state._manager == "large"


def test_an_engine_with_another_hash_algorithm_leaves_the_others_root_alone(state: State) -> None:
    """The second engine starts while the first one runs, as the controls of a diagnosis do."""
    tested, control = OwnGlobals(), OwnGlobals()
    with tested.active():
        state.NONE_HASH = b"sha256"
    with control.active():
        state.NONE_HASH = b"cbor"
    with tested.active():
        assert state.NONE_HASH == b"sha256"
    with control.active():
        assert state.NONE_HASH == b"cbor"


def test_a_connector_that_was_shut_down_is_removed(state: State) -> None:
    """The connector is removed even if its shutdown fails."""
    tiered = OwnGlobals()
    with tiered.active():
        state._KV_CONNECTOR_AGENT = "files"

    def shut_down() -> None:
        with tiered.active():
            state._KV_CONNECTOR_AGENT = None
            raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        shut_down()
    with tiered.active():
        assert state._KV_CONNECTOR_AGENT is None
