"""The state of a fault belongs to one engine, because a process may have several. No engine is started."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from coldproof.adapters.vllm.faults.catalogue import FAULTS
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


def test_a_fault_that_reads_the_tags_of_keys_refuses_a_release_without_them(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU with vLLM 0.26.0 such a fault did nothing, and the run looked as if nobody had detected it."""
    monkeypatch.setattr("coldproof.adapters.vllm.faults.keys.lora_and_salt.installed_version", lambda: "0.26.0")
    with pytest.raises(RuntimeError, match=r"needs vLLM 0\.31"):
        FAULTS["only-the-first-hash-has-the-adapter"].plant(monkeypatch)
