"""vLLM in this process with the fingerprint worker: the pool holds exactly what follows from its events."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.vllm.cells.cell import small_pool
from coldproof.adapters.vllm.fingerprint.topology import TOPOLOGIES
from coldproof.adapters.vllm.inproc import engine as vllm_inproc
from coldproof.adapters.vllm.inproc.engine import InprocEngine
from coldproof.adapters.vllm.server import VllmOptions
from coldproof.harness.execution.models.cache_folder import generated_files
from coldproof.harness.execution.models.lora import AdapterFiles, generate_adapter, place, tiny_model
from coldproof.harness.execution.runner.kv_event_ledger import EventLedger
from coldproof.harness.execution.runner.runner import WorkloadRun
from coldproof.harness.features.events.checks import check_events
from coldproof.harness.features.events.hash_checks import block_hash, computed, over_pickle
from coldproof.harness.history.records import History
from coldproof.harness.judgement.expected_hits import view
from coldproof.harness.workload.steps import Burst, Prompt, Request, Reset, Route, Segment, SetAdapter, Step, Workload

CACHED = generated_files()
pytestmark = pytest.mark.engine
ALGORITHMS = ("sha256", "sha256_cbor")


def start(folder: Path, *flags: str, events: bool = True) -> InprocEngine:
    """Return an engine with 16 usable blocks of 32 tokens."""
    return vllm_inproc.start(
        VllmOptions(
            model=str(tiny_model(CACHED)),
            arguments=small_pool("--max-num-batched-tokens", "64", *flags),
            log=folder / "engine.log",
            topology=TOPOLOGIES["full"],
            events=events,
        )
    )


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[InprocEngine]:
    """Yield the engine for all tests that need no other."""
    started = start(tmp_path_factory.mktemp("events"))
    yield started
    started.stop()


@pytest.fixture(scope="module")
def ledger() -> EventLedger:
    """Return the event ledger of that engine."""
    return EventLedger()


def contents() -> dict[str, AdapterFiles]:
    """Return two generated adapters."""
    config = json.loads((tiny_model(CACHED) / "config.json").read_text())
    return {name: generate_adapter(CACHED, config, seed=i, rank=8) for i, name in enumerate("AB")}


def run(engine: InprocEngine, ledger: EventLedger, folder: Path, nonce: str, *steps: Step) -> History:
    """Run these steps, check that their events have no findings, and return the history."""
    history = WorkloadRun(engine, Workload(steps), nonce, contents(), folder, ledger=ledger).history()
    assert all(outcome.error is None for outcome in history.outcomes)
    assert check_events(history) == []
    return history


def ask(*names: str, length: int = 70, **more: object) -> Burst:
    """Return a burst of one request for each name."""
    fields: dict[str, object] = {"max_tokens": 40, **more}
    return Burst(requests=tuple(Request(prompt=Prompt((Segment(name, length),)), **fields) for name in names))  # type: ignore[arg-type]


def hashes_in_pool(engine: InprocEngine) -> Counter[str]:
    """Return the copies of each published hash in the pool's own index."""
    assert engine._parts is not None
    index = engine._parts.core.scheduler.kv_cache_manager.block_pool.cached_block_hash_to_block._cache
    return Counter({key[:-4].hex()[-16:]: len(held) if isinstance(held, dict) else 1 for key, held in index.items()})


def hashes_by_events(ledger: EventLedger) -> Counter[str]:
    """Return the copies of each hash by the published events."""
    return Counter({name: count for (_, _, name), count in ledger.cache.copies.items() if count})


def test_the_event_ledger_equals_the_pool(engine: InprocEngine, ledger: EventLedger, tmp_path: Path) -> None:
    """Both agree after each run, under eviction, preemption, adapters, salts and resets, also for two copies of a
    block.
    """
    load = SetAdapter(name="tenant", content="A", path="a")
    story: list[tuple[Step, ...]] = [
        (ask("stem"), ask("stem"), ask("stem", length=100)),
        (ask("one", "two", "three"), ask("four", "four", length=200), ask("one")),
        (load, ask("stem", adapter="tenant"), ask("stem", salt="red"), ask("stem", adapter="tenant", salt="red")),
        (ask("stem"), Reset(), ask("stem"), ask("stem")),
        (ask("one", "two", "three", "four", length=100, max_tokens=100),),
    ]
    for i, steps in enumerate(story):
        history = run(engine, ledger, tmp_path, f"n{i}", *steps)
        assert history.events is not None
        assert hashes_by_events(ledger) == hashes_in_pool(engine)
        assert sum(hashes_in_pool(engine).values()) == ledger.cache.in_pool
    again = run(engine, ledger, tmp_path, "n4", *story[4])  # the same keys once more, on what the first run left
    assert again.events is not None
    assert again.events.before
    assert again.steps[-1].after.preemptions
    assert hashes_by_events(ledger) == hashes_in_pool(engine)


def test_hits_are_explained_exactly(engine: InprocEngine, ledger: EventLedger, tmp_path: Path) -> None:
    """A request that runs alone hits exactly what could be hit before it."""
    history = run(engine, ledger, tmp_path, "exact", ask("stem"), ask("stem"), ask("stem", length=130), ask("else"))
    seen = view(history)
    assert seen is not None
    bounds = {number: (limits.at_least, limits.at_most) for number, limits in seen.bounds().items()}
    assert [outcome.cached_tokens for outcome in history.outcomes] == [0, 64, 64, 0]
    assert bounds == {0: (0, 0), 1: (64, 64), 2: (64, 64), 3: (0, 0)}


def test_an_adapters_hash_includes_its_path(engine: InprocEngine, ledger: EventLedger, tmp_path: Path) -> None:
    """The event does not report the path, which is the known issue of EVENT-3.

    After a reload from another path, two hashes have the same event.
    """
    reload = SetAdapter(name="tenant", content="B", path="b", route=Route.IN_PLACE)
    burst = ask("stem", adapter="tenant", max_tokens=1, length=40)
    history = run(
        engine, ledger, tmp_path, "path", SetAdapter(name="tenant", content="A", path="a"), burst, reload, burst
    )
    first, second = (one.block for one in computed(history))
    assert first.hash != second.hash
    assert (first.parent, first.tokens, first.lora_name, first.extra_keys) == (
        second.parent,
        second.tokens,
        second.lora_name,
        second.extra_keys,
    )
    assert history.events is not None
    assert history.events.rule is not None
    root = over_pickle(history.events.rule.seed)
    for block, content in ((first, "A"), (second, "B")):
        path = place(contents()[content], tmp_path / f"{content.lower()}-path")
        keys = (("lora", block.lora_name, str(path)),)
        assert block_hash(over_pickle, root, block.tokens, keys).hex()[-16:] == block.hash  # type: ignore[arg-type]


def test_an_engine_without_events_publishes_nothing(tmp_path: Path) -> None:
    """The capability is absent with its reason, and histories have no events."""
    engine = start(tmp_path, events=False)
    try:
        support = engine.capabilities[Capability.KV_EVENTS]
        assert (support.present, support.evidence) == (False, "not enabled")
        history = WorkloadRun(engine, Workload((ask("stem"),)), "off", {}, tmp_path).history()
    finally:
        engine.stop()
    assert history.events is None


@pytest.mark.parametrize("algorithm", ALGORITHMS)
def test_hashes_follow_from_events(algorithm: str, tmp_path: Path) -> None:
    """This holds for the base model and for a salt, by each algorithm.

    This test is the last one, because engines in one process share the root hash.
    """
    engine = start(tmp_path, "--prefix-caching-hash-algo", algorithm)
    try:
        history = run(engine, EventLedger(), tmp_path, "hashes", ask("stem"), ask("stem", salt="red"), ask("stem"))
    finally:
        engine.stop()
    found = computed(history)
    assert len(found) == 6
    assert all(one.agrees for one in found)
