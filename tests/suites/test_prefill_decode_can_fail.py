"""Requirements on separate prefill and decode can fail: a pair of servers with an injected fault violates them.

A model is needed, because the fingerprint worker has no KV to transfer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faulty_runs import ANY_HIT, COUNTS, Bench, one_for_each_requirement, open_bench, requirement_of

from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults import plugin
from coldproof.harness.schema.verdict import FailureClass
from coldproof.suites import test_prefill_decode as apart

pytestmark = pytest.mark.engine
CELL, FAILING = CELLS["prefill-decode"], CELLS["prefill-decode-failures"]
EXAMPLES = 16
STUCK = (FailureClass.HANG, FailureClass.NOT_THE_CACHE)
WRONG = (*ANY_HIT, FailureClass.NOT_THE_CACHE)  # what an engine without a cache answers wrongly, too

BROKEN: list[tuple[Callable[..., None], str, tuple[FailureClass, ...]]] = [
    (apart.test_prefill_and_decode_apart_answer_as_one, "a-partial-fetch-begins-at-the-prompts-start", ANY_HIT),
    (apart.test_adapters_with_prefill_and_decode_apart, "a-load-reaches-the-prefiller-only", WRONG),
    (apart.test_salts_with_prefill_and_decode_apart, "the-prefiller-gets-no-salt", ANY_HIT),
    (apart.test_salts_with_prefill_and_decode_apart, "the-decoder-gets-no-salt", COUNTS),
    (apart.test_resets_with_prefill_and_decode_apart, "a-reset-does-nothing", ANY_HIT),
    (apart.test_weights_with_prefill_and_decode_apart, "new-weights-reach-the-prefiller-only", WRONG),
    (apart.test_weights_and_resets_that_reach_one_side_first, "a-reset-reaches-the-prefiller-only", WRONG),
    (apart.test_a_side_that_ends_and_is_started_again, "a-failed-fetch-counts-as-done", WRONG),
    (apart.test_a_side_that_ends_and_is_started_again, "unfetched-blocks-are-never-freed", (*COUNTS, *STUCK)),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run with pairs of servers."""
    with open_bench(tmp_path_factory.mktemp("apart") / "report", "model", engine="vllm") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "classes"),
    one_for_each_requirement(BROKEN),
)
def test_a_fault_between_two_engines_is_detected(
    bench: Bench,
    tmp_path: Path,
    test: Callable[..., None],
    fault: str,
    classes: tuple[FailureClass, ...],
) -> None:
    """The failure class fits. One fault is confirmed on a fresh pair, whose start takes half a minute.

    On a busy machine a pair may end once while one of its servers is killed: that accuses nobody, and the trial is
    repeated.
    """
    with plugin.injected(fault, tmp_path / "fault"):
        cell = FAILING if requirement_of(test).id == "PD-3" else CELL
        fresh = fault == "the-prefiller-gets-no-salt"
        case = bench.violation(test, cell, examples=EXAMPLES, fresh=fresh, trials=3)
    assert case.failure_class in classes, case.sentence
    assert plugin.count_markers(tmp_path / "fault", "acted") > 0
