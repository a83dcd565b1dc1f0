"""The wrapper passes weight updates, pauses and sleeps on, refuses what an engine lacks, and finds false claims."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.checked import AdapterError, CheckedEngine
from coldproof.adapters.protocol.engine import RequestRefused
from coldproof.adapters.protocol.weights import PauseMode, SleepPart, WeightRoute
from coldproof.harness.session.selftest.scripted_engine import ScriptedEngine

CALLS: dict[str, tuple[Capability, Callable[[Any], object]]] = {
    "update_weights": (Capability.WEIGHT_UPDATES, lambda e: e.update_weights("path", WeightRoute.PATH)),
    "weights_checksum": (Capability.WEIGHT_UPDATES, lambda e: e.weights_checksum()),
    "pause": (Capability.PAUSE_WAIT, lambda e: e.pause(PauseMode.WAIT, clear=True)),
    "sleep": (Capability.SLEEP, lambda e: e.sleep(1)),
    "deep sleep": (Capability.SLEEP_DISCARDS, lambda e: e.sleep(2)),
}


class Controlled(ScriptedEngine):
    """An engine with all controls, which records its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def update_weights(self, path: str, route: WeightRoute) -> None:
        self.calls.append(f"update {path} {route.name}")

    def pause(self, mode: PauseMode, *, clear: bool) -> None:
        self.calls.append(f"pause {mode.value} {clear}")

    def resume(self) -> None:
        self.calls.append("resume")

    def sleep(self, level: int) -> None:
        self.calls.append(f"sleep {level}")

    def wake(self, part: SleepPart = SleepPart.ALL) -> None:
        self.calls.append(f"wake {part.value}")


def wrapped(engine: ScriptedEngine, **present: bool) -> CheckedEngine:
    """Return the checked engine with these capabilities set."""
    for name, there in present.items():
        engine.capabilities[Capability[name]] = Support(there, "as the test says")
    return CheckedEngine(engine)


@pytest.mark.parametrize("call", CALLS)
def test_what_an_engine_lacks_is_refused_with_its_evidence(call: str) -> None:
    """The call is refused before it reaches the adapter."""
    capability, do = CALLS[call]
    with pytest.raises(RequestRefused, match="as the test says"):
        do(wrapped(Controlled(), **{capability.name: False}))


@pytest.mark.parametrize("call", [name for name in CALLS if CALLS[name][0] is not Capability.WEIGHT_UPDATES])
def test_a_claim_without_the_method_is_a_bug_of_the_adapter(call: str) -> None:
    """The error names the capability."""
    capability, do = CALLS[call]
    with pytest.raises(AdapterError, match=capability.value):
        do(wrapped(ScriptedEngine(), **{capability.name: True}))


def test_calls_are_passed_on() -> None:
    """Calls keep their order. Ending a pause or a sleep needs no capability of its own."""
    inner = Controlled()
    engine = wrapped(inner, WEIGHT_UPDATES=True, PAUSE_WAIT=True, SLEEP=True, SLEEP_DISCARDS=True)
    for _, do in CALLS.values():
        do(engine)
    engine.resume()
    engine.wake()
    engine.wake(SleepPart.KV)
    slept = ["sleep 1", "sleep 2"]
    assert inner.calls == [
        *("update path PATH", "pause wait True"),
        *slept,
        *("resume", "wake everything", "wake the KV cache"),
    ]


def test_an_exception_of_another_kind_is_a_bug_of_the_adapter() -> None:
    """Such an exception is named, as for every other method."""

    class Broken(Controlled):
        def pause(self, mode: PauseMode, *, clear: bool) -> None:
            raise KeyError(f"{mode} {clear}")

    with pytest.raises(AdapterError, match="raised KeyError in pause"):
        wrapped(Broken(), PAUSE_WAIT=True).pause(PauseMode.WAIT, clear=True)
