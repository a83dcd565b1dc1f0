"""POOL-1 can fail: faults are injected into a real vLLM that pools."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, EXAMPLES, WRONG, Bench, one_for_each_requirement, open_bench
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.suites import test_pooling as pooling

pytestmark = pytest.mark.engine
CHUNKED, TIGHT, CLASSES = CELLS["pooling"], CELLS["pooling-tight"], CELLS["pooling-classes"]
ONE, EACH = pooling.test_vectors_on_a_hit, pooling.test_vectors_of_each_token

INCOMPLETE = (FailureClass.API, FailureClass.NOT_THE_CACHE)  # the latter where it needs no hit
BROKEN: list[tuple[str, Callable[..., None], Cell, tuple[FailureClass, ...]]] = [
    ("a-hit-is-pooled-at-the-start-of-its-last-chunk", ONE, CHUNKED, WRONG),
    ("a-hit-is-pooled-before-its-last-token", ONE, CHUNKED, WRONG),
    ("a-hit-is-pooled-without-its-last-chunk", ONE, CHUNKED, WRONG),
    ("vectors-of-one-step-are-swapped", ONE, TIGHT, WRONG),
    ("a-hit-for-a-vector-is-one-block-too-long", ONE, CHUNKED, ANY_HIT),
    ("a-hit-for-a-vector-is-one-block-too-long", ONE, CLASSES, ANY_HIT),
    ("requests-for-vectors-lose-their-salt", ONE, CHUNKED, ANY_HIT),
    ("requests-for-vectors-lack-the-adapter", ONE, CHUNKED, ANY_HIT),
    ("vectors-of-each-token-read-the-cache", EACH, CHUNKED, INCOMPLETE),
    ("a-vector-of-a-prompt-in-chunks-is-lost", EACH, CHUNKED, INCOMPLETE),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run with the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("pooling") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "test", "cell", "classes"),
    one_for_each_requirement(BROKEN),
)
def test_an_injected_fault_is_detected(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    test: Callable[..., None],
    cell: Cell,
    classes: tuple[FailureClass, ...],
) -> None:
    """The requirement is violated with a failure class that fits, and confirmed on a fresh engine with the same
    fault.
    """
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=EXAMPLES)
    assert case.failure_class in classes, case.sentence


@pytest.mark.parametrize("test", with_samples([ONE, EACH], ONE))
@pytest.mark.parametrize("cell", with_samples([CHUNKED, TIGHT], CHUNKED), ids=["chunks", "small pool"])
def test_unmodified_vllm_conforms(bench: Bench, test: Callable[..., None], cell: Cell) -> None:
    """There is no finding without a fault."""
    verdict, reason, cases = bench.verdict(test, cell, examples=40)
    assert (verdict, cases) == (Verdict.CONFORMS, []), reason


@pytest.mark.nightly
@pytest.mark.parametrize("fault", ["a-hit-for-a-vector-is-one-block-too-long", "requests-for-vectors-lose-their-salt"])
def test_an_injected_fault_in_an_engine_with_a_model_is_detected(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """Vectors of a model are compared up to rounding."""
    with open_bench(tmp_path_factory.mktemp("pooling model") / "report") as made:
        plant(fault, monkeypatch)
        case = made.violation(ONE, CHUNKED, examples=EXAMPLES)
    assert case.failure_class in ANY_HIT, case.sentence
