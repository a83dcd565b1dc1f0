"""The state of a fault belongs to one engine, because a process may have several. No engine is started."""

from __future__ import annotations

from types import SimpleNamespace

from coldproof.adapters.vllm.faults.patching import count_up, state_of


def test_state_is_made_once_for_each_engine() -> None:
    """Two engines in one process do not share the state."""
    one, other = SimpleNamespace(), SimpleNamespace()
    state_of(one, "seen", list[str]).append("a block")
    assert state_of(one, "seen", list[str]) == ["a block"]
    assert state_of(other, "seen", list[str]) == []


def test_events_are_counted_for_each_engine() -> None:
    """Events are counted per engine and per kind."""
    one, other = SimpleNamespace(), SimpleNamespace()
    assert [count_up(one, "resets") for _ in range(3)] == [1, 2, 3]
    assert count_up(one, "loads") == count_up(other, "resets") == 1
