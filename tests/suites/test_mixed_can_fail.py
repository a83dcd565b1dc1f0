"""MIXED-2 detects faults of features that meet: bugs of the past, planted again in a real vLLM."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from support.faults import plant
from support.faulty_runs import COUNTS, EXAMPLES, WRONG, Bench, one_for_each_requirement, open_bench

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.schema.verdict import FailureClass
from coldproof.suites import test_mixed as mixed

pytestmark = pytest.mark.engine
SEVERAL = mixed.test_several_features_at_once
HANG = (FailureClass.HANG,)
CRASH_OR_WRONG = (FailureClass.CRASH, *WRONG)
BROKEN: list[tuple[str, Cell, tuple[FailureClass, ...]]] = [
    ("a-hit-that-no-group-shares-stands-without-a-load", CELLS["window+tier-offload"], (*WRONG, *COUNTS)),
    ("groups-allocate-for-a-load-one-after-the-other", CELLS["window+tier-offload"], CRASH_OR_WRONG),
    ("a-step-smaller-than-a-states-block-computes-nothing", CELLS["state-blocks+chunks-24"], HANG),
    ("the-encoders-budget-leaves-less-than-a-block", CELLS["state+chunks-24+images"], HANG),
    ("a-load-that-finds-no-room-is-forgotten", CELLS["tier-offload+priority"], HANG),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run without a model: the layers are those of the topology."""
    with open_bench(tmp_path_factory.mktemp("crossed") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(("fault", "cell", "classes"), one_for_each_requirement(BROKEN, test=SEVERAL))
def test_a_planted_bug_is_detected(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, fault: str, cell: Cell, classes: tuple[FailureClass, ...]
) -> None:
    """The features were right where each was alone."""
    plant(fault, monkeypatch)
    case = bench.violation(SEVERAL, cell, examples=10 * EXAMPLES, fresh=False)
    assert case.failure_class in classes, case.sentence
