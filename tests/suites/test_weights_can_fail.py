"""Requirements about weight updates detect vLLM with an injected fault, and find nothing without one.

The fingerprint worker makes this fast: its digests follow from the content of the weights, and a sleep discards its
KV.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, EXAMPLES, Bench, one_for_each_requirement, open_bench
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.harness.judgement.weight_pairs import PairCount
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.harness.schema.weight_updates import Invalidation
from coldproof.suites import test_weights as weights

pytestmark = pytest.mark.engine
DEFAULT = CELLS["default"]

BROKEN: list[tuple[Callable[..., None], str, tuple[FailureClass, ...]]] = [
    (weights.test_new_weights, "a-reset-does-nothing", ANY_HIT),
    (weights.test_new_weights, "a-pause-clears-nothing", ANY_HIT),
    (weights.test_new_weights, "a-sleep-keeps-the-index", ANY_HIT),
    (weights.test_new_weights, "an-update-has-no-effect", (FailureClass.NOT_THE_CACHE,)),
    (weights.test_pauses, "a-pause-that-aborts-keeps-requests", (FailureClass.API,)),
    (weights.test_pauses, "a-pause-does-not-pause", (FailureClass.API, *ANY_HIT)),
    (weights.test_pauses, "requests-that-wait-during-a-pause-are-lost", (FailureClass.NOT_THE_CACHE,)),
    (weights.test_updates_during_pauses, "kept-requests-keep-their-kv", ANY_HIT),
    (weights.test_requests_in_flight_over_an_update, "blocks-of-kept-requests-stay-in-the-index", ANY_HIT),
    (weights.test_requests_in_flight_over_an_update, "the-version-in-a-salt-is-cut-off", ANY_HIT),
    (weights.test_adapters_over_an_update, "a-reset-leaves-the-blocks-of-adapters", ANY_HIT),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield one run for all faults."""
    with open_bench(tmp_path_factory.mktemp("weights") / "report", worker="fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "classes"),
    one_for_each_requirement(BROKEN),
)
def test_a_fault_is_detected(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    classes: tuple[FailureClass, ...],
) -> None:
    """The requirement is violated with a failure class that fits, and confirmed on a fresh engine with the same
    fault.
    """
    plant(fault, monkeypatch)
    case = bench.violation(test, DEFAULT, examples=2 * EXAMPLES)
    assert case.failure_class in classes, case.sentence


@pytest.mark.parametrize(
    "test",
    with_samples(
        [
            weights.test_new_weights,
            weights.test_pauses,
            weights.test_updates_during_pauses,
            weights.test_requests_in_flight_over_an_update,
            weights.test_adapters_over_an_update,
        ],
        weights.test_adapters_over_an_update,
    ),
)
def test_the_unmodified_engine_conforms(bench: Bench, test: Callable[..., None]) -> None:
    """The reason of the verdict names the tested policy."""
    verdict, reason, cases = bench.verdict(test, DEFAULT, examples=2 * EXAMPLES)
    assert verdict in (Verdict.CONFORMS, Verdict.NOT_EXERCISED), reason
    said = "tested promise: on reset" in reason
    assert verdict is Verdict.NOT_EXERCISED or said is (test is not weights.test_pauses)
    assert cases == []
    pairs = [pair for counted in counted_pairs(bench) for pair in counted]
    assert bool(pairs) is (test is not weights.test_pauses)
    assert not any(pair.wrong for pair in pairs)


def test_the_table_of_updates_marks_the_pair_that_is_wrong(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only one example counts, because the examples of minimisation repeat the same failure."""
    plant("a-reset-does-nothing", monkeypatch)
    bench.violation(weights.test_new_weights, DEFAULT, examples=2 * EXAMPLES)
    counted = counted_pairs(bench)
    assert {pair.invalidation for pairs in counted for pair in pairs if pair.wrong} == {Invalidation.RESET}
    assert sum(any(pair.wrong for pair in pairs) for pairs in counted) == 1


def counted_pairs(bench: Bench) -> list[list[PairCount]]:
    """Return the counts of each example that has some."""
    return [fields["weight_pairs"] for kind, fields in bench.events if kind == "example" and fields["weight_pairs"]]
