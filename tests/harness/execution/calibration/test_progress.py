"""A calibration with a slow model reports its progress as events with counts, which the terminal formats."""

from __future__ import annotations

import io
import itertools
from pathlib import Path
from typing import Any

import msgspec
import pytest
from _pytest.terminal import TerminalReporter
from support.histories import Tampered, contents

from coldproof.adapters.protocol.requests import Completion, CompletionRequest
from coldproof.harness.execution.calibration.calibrate import calibrate
from coldproof.harness.execution.calibration.cross_engine import calibrate_between
from coldproof.harness.execution.calibration.noise_band import BATCHES
from coldproof.harness.execution.calibration.progress import EVERY_SECONDS, Progress
from coldproof.harness.execution.oracles.engine import EngineOracle
from coldproof.harness.judgement.oracle import Question
from coldproof.harness.session.selftest.scripted_engine import BLOCK, ScriptedEngine
from coldproof.harness.session.terminal import terminal as terminals
from coldproof.harness.session.terminal.terminal import Terminal

SLOW = 10.0  # seconds of an answer


class Slow:
    """A clock that advances with every answer of its oracles, and the emitted events."""

    def __init__(self) -> None:
        self.now = 0.0
        self.events: list[dict[str, Any]] = []
        self.progress = Progress(self.emit, clock=lambda: self.now)

    def emit(self, kind: str, **fields: Any) -> None:
        """Record an event."""
        assert kind == "phase"
        self.events.append(fields)

    def oracle(self, folder: Path, *, noisy: bool = False) -> EngineOracle:
        """Return an oracle whose answers take long by this clock; with `noisy` their scores vary."""
        calls = itertools.count()

        def slowly(_: CompletionRequest, honest: Completion) -> Completion:
            self.now += SLOW
            score = -0.1 - noisy * 0.05 * (next(calls) % 7)
            moved = tuple(msgspec.structs.replace(t, logprob=score) for t in honest.tokens)
            return msgspec.structs.replace(honest, tokens=moved)

        return EngineOracle("cold-engine", Tampered(slowly, caching=False), list(contents(folder).values()), memo={})

    def phases(self) -> dict[str, list[dict[str, Any]]]:
        """Return the events of each phase, in order."""
        words = dict.fromkeys(event["words"] for event in self.events)
        return {one: [event for event in self.events if event["words"] == one] for one in words}


def calibrated(slow: Slow, oracle: EngineOracle) -> Any:
    """Calibrate for the base model and two adapters."""
    return calibrate(oracle, list(oracle.adapters), cell="default", block=BLOCK, slots=4, progress=slow.progress)


def test_a_calibration_counts_its_answers(tmp_path: Path) -> None:
    """Nine probes run four times, then mixed batches. The estimate follows from the time so far."""
    slow = Slow()
    calibrated(slow, slow.oracle(tmp_path))
    phases = slow.phases()
    assert list(phases) == [
        "calibrating",
        "checking that cold answers depend on their prompts",
        "checking concurrent requests of several adapters",
    ]
    first, *_, last = phases["calibrating"]
    assert first == {"words": "calibrating", "done": 1, "of": 36, "seconds_left": pytest.approx(35 * SLOW)}
    assert last["done"] > 36 - 3  # the answers of a batch come at once
    counts = [event["done"] for event in phases["checking concurrent requests of several adapters"]]
    assert counts == sorted(counts)
    assert counts[-1] >= 9 + 4 * 6


def test_measuring_noise_counts_every_answer(tmp_path: Path) -> None:
    """It takes the longest, and the number of its answers is known in advance."""
    slow = Slow()
    calibrated(slow, slow.oracle(tmp_path, noisy=True))
    (last,) = slow.phases()["measuring the noise of cold answers"][-1:]
    assert last["of"] - BATCHES[0] < last["done"] < last["of"]


def test_comparing_with_another_engine_counts_the_answers_of_both(tmp_path: Path) -> None:
    """Each question is sent to both engines."""
    slow = Slow()
    own, other = slow.oracle(tmp_path / "own"), slow.oracle(tmp_path / "other")
    found, _ = calibrated(Slow(), own)
    slow.events.clear()
    names = dict.fromkeys(list(own.adapters)[:1], "A")
    calibrate_between(own, other, names, name="engine:x 1", block=BLOCK, found=found, progress=slow.progress)
    assert list(slow.phases()) == ["comparing with engine:x 1"]
    assert slow.events[-1]["done"] == slow.events[-1]["of"] - 1
    emitted = len(slow.events)
    own.ask_without_memo(Question(tuple(range(40, 60)), None, 4))
    assert len(slow.events) == emitted  # nobody counts behind the phase


def test_a_fast_engine_emits_nothing(tmp_path: Path) -> None:
    """A calibration of less than a second needs no progress."""
    slow = Slow()
    oracle = EngineOracle("cold-engine", ScriptedEngine(caching=False), list(contents(tmp_path).values()), memo={})
    calibrated(slow, oracle)
    assert slow.events == []
    assert EVERY_SECONDS >= 1


def test_the_terminal_puts_a_count_into_words(pytestconfig: pytest.Config, monkeypatch: pytest.MonkeyPatch) -> None:
    """A log has one line every few seconds."""
    now = [1000.0]
    monkeypatch.setattr(terminals.time, "monotonic", lambda: now[0])
    file = io.StringIO()
    terminal = Terminal(TerminalReporter(pytestconfig, file), None)
    terminal.on_event("phase", {"words": "starting the engine"})
    for done in range(1, 40):
        now[0] += 2
        left = 2.0 * (40 - done)
        terminal.on_event("phase", {"words": "calibrating", "done": done, "of": 40, "seconds_left": left})
    lines = file.getvalue().splitlines()
    assert lines[0] == "starting the engine ..."
    assert lines[1] == "calibrating: 8 of 40 cold answers, about 64 s left"
    assert 4 <= len(lines) <= 6
