"""Requirements on several ranks can fail: a server with two ranks and an injected fault violates them.

Only a server has several ranks, so the fault is injected into its processes. The fingerprint worker makes ranks that
serve whole requests cheap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from support.faulty_runs import ANY_HIT, COUNTS, LOST, Bench, one_for_each_requirement, open_bench

from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults import plugin
from coldproof.harness.schema.verdict import FailureClass
from coldproof.suites import test_ranks as ranks

pytestmark = pytest.mark.engine
EXAMPLES = 8
WRONG = (*ANY_HIT, FailureClass.NOT_THE_CACHE)  # what an engine without a cache answers wrongly, too

BROKEN: list[tuple[Callable[..., None], str, tuple[FailureClass, ...]]] = [
    (ranks.test_adapters_on_every_rank, "a-load-reaches-the-first-rank-only", WRONG),
    (ranks.test_resets_on_every_rank, "a-reset-reaches-the-first-rank-only", ANY_HIT),
    (ranks.test_pauses_on_every_rank, "a-pause-clears-the-first-rank-only", ANY_HIT),
    (ranks.test_new_weights_on_every_rank, "new-weights-reach-the-first-rank-only", WRONG),
    (ranks.test_several_ranks_answer_as_one, "the-chosen-rank-is-ignored", (*COUNTS, *LOST)),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run of servers with the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("ranks") / "report", "fingerprint", engine="vllm") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "classes"),
    one_for_each_requirement(BROKEN),
)
def test_a_fault_of_one_rank_is_detected(
    bench: Bench, tmp_path: Path, test: Callable[..., None], fault: str, classes: tuple[FailureClass, ...]
) -> None:
    """The requirement is violated with a failure class that fits the fault."""
    with plugin.injected(fault, tmp_path / "fault"):
        case = bench.violation(test, CELLS["dp2"], examples=EXAMPLES, fresh=False)
    assert case.failure_class in classes, case.sentence
    assert "ranks" in case.signature
    assert plugin.count_markers(tmp_path / "fault", "acted") > 0


@pytest.mark.nightly
def test_a_rank_that_reads_another_block_is_detected(tmp_path: Path) -> None:
    """The ranks of one layer share its arithmetic, so a model is needed. The case is confirmed on a fresh server."""
    test, cell = ranks.test_several_ranks_answer_as_one, CELLS["tp2"]
    with open_bench(tmp_path / "report", "model", engine="vllm") as bench:
        with plugin.injected("one-rank-reads-another-block", tmp_path / "fault"):
            case = bench.violation(test, cell, examples=EXAMPLES)
        assert case.failure_class in ANY_HIT, case.sentence
        assert plugin.count_markers(tmp_path / "fault", "acted") > 0
