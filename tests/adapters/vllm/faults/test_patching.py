"""What a fault remembers belongs to one engine, because a process may have several. No engine."""

from __future__ import annotations

from types import SimpleNamespace

from coldproof.adapters.vllm.faults.patching import count_up, state_of


def test_state_is_made_once_for_each_engine() -> None:
    """Two engines that grow old side by side do not age each other."""
    one, other = SimpleNamespace(), SimpleNamespace()
    state_of(one, "seen", list[str]).append("a block")
    assert state_of(one, "seen", list[str]) == ["a block"]
    assert state_of(other, "seen", list[str]) == []


def test_events_are_counted_for_each_engine() -> None:
    """And for each kind of event."""
    one, other = SimpleNamespace(), SimpleNamespace()
    assert [count_up(one, "resets") for _ in range(3)] == [1, 2, 3]
    assert count_up(one, "loads") == count_up(other, "resets") == 1
