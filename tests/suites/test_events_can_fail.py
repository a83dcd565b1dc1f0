"""Each requirement on KV events detects a real vLLM that publishes something wrong.

The cache itself is correct, so no answer and no count shows the fault. The fingerprint worker makes these runs
cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import Bench, one_for_each_requirement, open_bench

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.suites import test_events as events

pytestmark = pytest.mark.engine
ROOMY, TIGHT, TIER = CELLS["events"], CELLS["events-tight"], CELLS["events-offload"]
TIERS_FAULT = "the-tiers-events-have-the-tokens-of-other-blocks"
EXAMPLES = 12
NIGHTLY = pytest.mark.nightly

BROKEN: list[tuple[Callable[..., None], str, Cell, str]] = [
    (events.test_events_explain_the_hits, "every-third-store-is-not-reported", ROOMY, ""),
    (events.test_events_explain_the_hits, "stored-blocks-have-no-parent", ROOMY, "no request until then"),
    (events.test_events_explain_the_hits, "stored-blocks-are-their-own-parents", ROOMY, "which cannot be hit"),
    (events.test_events_explain_the_hits, "reported-tokens-start-a-position-late", ROOMY, "no request until then"),
    (
        events.test_events_explain_the_hits,
        "reported-tokens-exceed-the-blocks",
        ROOMY,
        "so that the tokens of each block are unknown",
    ),
    (events.test_events_explain_the_hits, "evictions-are-reported-when-requests-end", ROOMY, ""),
    (events.test_events_explain_the_hits, "the-first-batch-is-lost", ROOMY, "arrived instead of"),
    (events.test_events_identify_their_requests, "salts-are-not-reported", ROOMY, "no request until then"),
    (events.test_events_identify_their_requests, "adapters-are-not-reported", ROOMY, "no request until then"),
    (
        events.test_restarts_can_be_seen_by_a_subscriber,
        "batch-numbers-go-on-after-a-restart",
        ROOMY,
        "no subscriber can see the restart",
    ),
    (events.test_events_report_resets, "resets-are-not-reported", ROOMY, "no event reports it"),
    (events.test_events_report_evictions, "evictions-are-not-reported", TIGHT, "the pool has only 16"),
    (events.test_events_report_evictions, "evictions-are-reported-of-another-block", TIGHT, "but no copy of it exists"),
    (events.test_events_of_everything_at_once, "evictions-are-not-reported", TIGHT, ""),
    (events.test_events_explain_the_hits, TIERS_FAULT, TIER, "and in a tier"),
    (events.test_events_report_evictions, TIERS_FAULT, TIER, "and in a tier"),
    (events.test_events_of_several_groups, "groups-are-not-reported", CELLS["events-window"], ""),
    (
        events.test_block_hashes_follow_from_their_events,
        "reported-hashes-are-of-other-blocks",
        ROOMY,
        "engine's own rule",
    ),
    (
        events.test_block_hashes_follow_from_their_events,
        "decoded-blocks-of-resumed-requests-have-other-hashes",
        TIGHT,
        "engine's own rule",
    ),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run with the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("events") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "sentence"),
    one_for_each_requirement(BROKEN, elsewhere=["EVENT-5"]),  # a fault that needs no restart: test_resets_can_fail.py
)
def test_an_engine_with_wrong_events_is_detected(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    sentence: str,
) -> None:
    """The requirement is violated because of the events, and confirmed on a fresh engine with the same fault."""
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=EXAMPLES)
    assert case.failure_class in (FailureClass.ACCOUNTING, FailureClass.API), case.sentence
    assert case.sentence.startswith("KV events: "), case.sentence
    assert sentence in case.sentence


@pytest.mark.parametrize(
    ("test", "cell"),
    [
        pytest.param(events.test_events_explain_the_hits, ROOMY, id="hits"),
        pytest.param(events.test_restarts_can_be_seen_by_a_subscriber, ROOMY, id="restarts", marks=NIGHTLY),
        pytest.param(events.test_events_of_everything_at_once, TIGHT, id="everything"),
        pytest.param(events.test_block_hashes_follow_from_their_events, ROOMY, id="hashes"),
        pytest.param(
            events.test_block_hashes_follow_from_their_events, TIGHT, id="hashes behind preemptions", marks=NIGHTLY
        ),
    ],
)
def test_the_unmodified_engine_conforms(bench: Bench, test: Callable[..., None], cell: Cell) -> None:
    """There is no false positive without a fault. So few examples may lack evidence."""
    verdict, reason, cases = bench.verdict(test, cell, examples=4)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    assert cases == []


def test_without_events_there_is_no_verdict(bench: Bench) -> None:
    """The verdict is UNSUPPORTED, with what was seen instead."""
    with pytest.raises(pytest.skip.Exception):
        bench.verdict(events.test_events_explain_the_hits, CELLS["default"], examples=1)
    (said,) = [fields for kind, fields in bench.events if kind == "verdict"]
    assert (said["verdict"], said["reason"]) == (Verdict.UNSUPPORTED, "published KV events: not enabled")
