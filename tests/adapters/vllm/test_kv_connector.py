"""Several engines in one process each find their own connector in vLLM's global variable."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest

from coldproof.adapters.vllm.inproc import kv_connector
from coldproof.adapters.vllm.inproc.kv_connector import OwnConnector


class State(ModuleType):
    """A module with vLLM's variable."""

    _KV_CONNECTOR_AGENT: str | None = None


@pytest.fixture
def state(monkeypatch: pytest.MonkeyPatch) -> State:
    """In place of vLLM's module."""
    module = State("state_of_a_test")
    monkeypatch.setitem(sys.modules, "state_of_a_test", module)
    monkeypatch.setattr(kv_connector, "STATE", "state_of_a_test")
    return module


def test_each_engine_keeps_what_its_start_has_created(state: State) -> None:
    """An engine without a connector has none, whatever ran before it."""
    tiered, cold = OwnConnector(), OwnConnector()
    with tiered.active():
        state._KV_CONNECTOR_AGENT = "files"
    with cold.active():
        assert state._KV_CONNECTOR_AGENT is None
        with tiered.active():
            assert state._KV_CONNECTOR_AGENT == "files"
    assert state._KV_CONNECTOR_AGENT is None


def test_a_connector_that_was_shut_down_is_gone(state: State) -> None:
    """Also if the shutdown failed in the end."""
    tiered = OwnConnector()
    tiered.agent = "files"

    def shut_down() -> None:
        with tiered.active():
            state._KV_CONNECTOR_AGENT = None
            raise ValueError("no such file")

    with pytest.raises(ValueError, match="no such file"):
        shut_down()
    assert (tiered.agent, state._KV_CONNECTOR_AGENT) == (None, None)
