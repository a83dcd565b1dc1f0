"""Requirements on a reset's scope, its announcement, and KV that outlives an engine can be violated.

Faults are injected into a real vLLM with the fingerprint worker. The unmodified engine violates three requirements;
there, a repaired engine must conform.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, COUNTS, WRONG, Bench, one_for_each_requirement, open_bench

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.vllm.faults.engine_parts import module, scheduler
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.suites import test_control as control
from coldproof.suites import test_events as events
from coldproof.suites import test_tiers as tiers

pytestmark = pytest.mark.engine
DEFAULT, EVENTS = CELLS["default"], CELLS["events"]
EXAMPLES = 24

BROKEN: list[tuple[Callable[..., None], str, Cell, tuple[FailureClass, ...]]] = [
    (control.test_reset_of_running_requests, "a-reset-of-running-requests-does-nothing", DEFAULT, ANY_HIT),
    (
        control.test_reset_of_running_requests,
        "requests-that-a-reset-preempts-count-anew",
        DEFAULT,
        (FailureClass.API, FailureClass.NOT_THE_CACHE),
    ),
    (control.test_reset_of_the_second_tier, "a-reset-skips-the-second-tier", CELLS["tier-offload"], COUNTS),
    (
        control.test_reset_of_the_second_tier,
        "a-reset-of-the-second-tier-does-nothing",
        CELLS["tier-simple"],
        COUNTS,
    ),
    (control.test_reset_of_the_second_tier, "a-reset-empties-the-first-of-two-tiers", CELLS["tier-multi"], COUNTS),
    (
        control.test_reset_of_the_second_tier,
        "the-tiers-reset-hides-that-the-pool-was-not-reset",
        CELLS["tier-simple"],
        COUNTS,
    ),
    (
        events.test_resets_are_announced_while_the_engine_is_idle,
        "stores-are-reported-after-the-reset-that-removed-them",
        EVENTS,
        COUNTS,
    ),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run with the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("resets") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes"),
    one_for_each_requirement(BROKEN),
)
def test_a_reset_that_confirms_too_much_is_detected(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    classes: tuple[FailureClass, ...],
) -> None:
    """The requirement is violated and confirmed on a fresh engine with the same fault."""
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=EXAMPLES)
    assert case.failure_class in classes, case.sentence
    assert "announced late" not in case.signature


@pytest.mark.parametrize(
    ("test", "cell"),
    [
        pytest.param(control.test_reset_of_running_requests, DEFAULT, id="running requests"),
        pytest.param(control.test_reset_of_the_second_tier, CELLS["tier-simple"], id="a second tier"),
    ],
)
def test_the_unmodified_engine_conforms(bench: Bench, test: Callable[..., None], cell: Cell) -> None:
    """There is no false positive without a fault. So few examples may lack evidence."""
    verdict, reason, cases = bench.verdict(test, cell, examples=6)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []


@pytest.mark.nightly
def test_a_connector_that_reports_its_missing_reset_conforms(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM takes the connector's None for success. If it counted as a failure, no KV would have to be removed."""
    connector = module("distributed.kv_transfer.kv_connector.v1.base").KVConnectorBase_V1
    tier = CELLS["tier-example"]
    case = bench.violation(control.test_reset_of_the_second_tier, tier, examples=EXAMPLES)
    assert "before a cache reset that reported success" in case.sentence
    monkeypatch.setattr(connector, "reset_cache", lambda _: False)
    verdict, reason, cases = bench.verdict(control.test_reset_of_the_second_tier, tier, examples=6)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []


@pytest.mark.nightly
def test_a_reset_that_is_announced_at_once_conforms(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM announces it with the first step of the next request, which is too late for subscribers of an idle
    engine.
    """
    test = events.test_resets_are_announced_while_the_engine_is_idle
    case = bench.violation(test, EVENTS, examples=EXAMPLES)
    assert case.signature.endswith("; announced late")
    original, batch = scheduler().reset_prefix_cache, module("distributed.kv_events").KVEventBatch

    def flush(this: Any, *rest: Any, **named: Any) -> bool:
        done = bool(original(this, *rest, **named))
        events_now = this.kv_cache_manager.take_events()
        if events_now:
            this.kv_event_publisher.publish(batch(ts=time.time(), events=events_now))
        return done

    monkeypatch.setattr(scheduler(), "reset_prefix_cache", flush)
    verdict, reason, cases = bench.verdict(test, EVENTS, examples=6)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []


@pytest.mark.nightly
def test_files_of_a_different_engine_are_detected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """ExampleConnector names its files by tokens alone. If it never finds a file, the requirement conforms."""
    tier, test = CELLS["tier-example"], tiers.test_kv_of_an_engine_with_a_difference
    case = bench.violation(test, tier, examples=EXAMPLES)
    assert case.failure_class is FailureClass.STALE_STATE, case.sentence
    assert "; restart: " in case.signature
    connector = module("distributed.kv_transfer.kv_connector.v1.example_connector").ExampleConnector
    begin = connector.__init__

    def separate(this: Any, config: Any, *rest: Any, **named: Any) -> None:
        begin(this, config, *rest, **named)
        this._storage_path = tempfile.mkdtemp(dir=Path(config.model_config.model).parent)

    monkeypatch.setattr(connector, "__init__", separate)  # scheduler and worker: nothing is ever loaded
    verdict, reason, cases = bench.verdict(test, tier, examples=4)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []


@pytest.mark.nightly
def test_files_that_the_next_engine_reads_in_part_are_detected(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """An equal engine may load all files, but not parts of them."""
    test = tiers.test_kv_of_an_equal_engine
    verdict, reason, cases = bench.verdict(test, CELLS["tier-example"], examples=4)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []
    plant("files-of-an-earlier-engine-are-read-in-part", monkeypatch)
    case = bench.violation(test, CELLS["tier-example"], examples=EXAMPLES)
    assert case.failure_class in WRONG, case.sentence
