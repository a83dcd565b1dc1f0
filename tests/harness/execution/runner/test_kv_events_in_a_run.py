"""The runner takes an engine's KV events before and after a run, and keeps them only if they are complete."""

from __future__ import annotations

import time
from pathlib import Path

from support.event_streams import batches, hashes, removed, stored
from support.histories import ask, burst, contents

from coldproof.adapters.protocol.capabilities import Capability, Support
from coldproof.adapters.protocol.engine import EngineDied
from coldproof.adapters.protocol.kv_events import Published
from coldproof.harness.execution.runner.kv_event_ledger import EventLedger
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.history.records import History
from coldproof.harness.session.selftest.scripted_engine import InjectedBug, ScriptedEngine
from coldproof.harness.workload.steps import Restart, Workload

BEFORE = tuple(range(48))


class Publishing(ScriptedEngine):
    """An engine that publishes given events, one batch per call."""

    def __init__(self, *streams: Published, plant: InjectedBug = InjectedBug.CLEAN) -> None:
        super().__init__(plant)
        self.capabilities[Capability.KV_EVENTS] = Support(True, "scripted")
        self.streams = list(streams)

    def take_events(self) -> Published:
        """Return the next batch, or end the engine when there is none left."""
        if not self.streams:
            raise EngineDied("the scripted engine has terminated")
        return self.streams.pop(0)


def run(engine: ScriptedEngine, folder: Path, ledger: EventLedger | None = None) -> History:
    """Run two equal requests and return the history."""
    workload = Workload((burst(ask()), burst(ask())))
    return WorkloadRun(engine, workload, "n", contents(folder), folder / "run", ledger=ledger).history()


def test_events_before_a_run_are_not_its_events(tmp_path: Path) -> None:
    """Only what concerns the run is kept, and times begin with the run."""
    before, during = batches((3.0, (stored(BEFORE),)), (4.0, (removed(hashes(BEFORE)[2]),)))
    history = run(Publishing(Published(batches=(before,)), Published(batches=(during,))), tmp_path)
    assert history.events is not None
    assert [batch.sequence for batch in history.events.batches] == [1]
    assert history.events.expected == 1
    assert [held.block.hash for held in history.events.before] == hashes(BEFORE)


def test_a_ledger_goes_on_from_run_to_run(tmp_path: Path) -> None:
    """A run may remove what an earlier run stored."""
    ledger, nothing = EventLedger(), Published()
    first, second = batches((3.0, (stored(BEFORE),)), (4.0, (removed(hashes(BEFORE)[2]),)))
    engine = Publishing(nothing, Published(batches=(first,)), nothing, Published(batches=(second,)))
    assert run(engine, tmp_path / "a", ledger).events is not None
    history = run(engine, tmp_path / "b", ledger)
    assert history.events is not None
    assert history.events.in_pool == 3


def test_an_engine_without_the_capability_has_none(tmp_path: Path) -> None:
    """An empty stream would claim that nothing happened."""
    assert run(ScriptedEngine(), tmp_path).events is None


def test_a_lost_engine_has_no_complete_events(tmp_path: Path) -> None:
    """The engine may be lost while it answers or when its events are taken."""
    nothing = Published()
    died = run(Publishing(nothing, nothing, plant=InjectedBug.DIES), tmp_path / "a")
    assert (died.events, died.engine_lost) == (None, "the scripted engine has terminated")
    silent = run(Publishing(nothing), tmp_path / "b")
    assert (silent.events, silent.engine_lost) == (None, "the scripted engine has terminated")


def test_a_restart_separates_the_batches_of_two_engines(tmp_path: Path) -> None:
    """The first engine's events are taken before it ends. Times continue although the next clock starts elsewhere."""

    class Later(Publishing):
        def clock(self) -> float:
            return super().clock() - 5000

    nothing, now = Published(), time.monotonic()
    (first,), (second,) = batches((now, (stored(BEFORE),))), batches((now - 5000, (stored(BEFORE),)))
    engine = Publishing(nothing, Published(batches=(first,)))
    later = Later(Published(batches=(second,)))
    workload = Workload((burst(ask()), Restart(), burst(ask())))
    run = WorkloadRun(engine, workload, "n", contents(tmp_path), tmp_path / "run", next_engine=lambda _: later)
    events = run.history().events
    assert events is not None
    assert [restart.batches for restart in events.restarts] == [1]
    assert [batch.sequence for batch in events.batches] == [0, 0]
    assert all(abs(at) < 2500 for at in (events.restarts[0].at, *(batch.at for batch in events.batches)))
