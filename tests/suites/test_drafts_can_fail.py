"""SPEC-1 can fail: faults are injected into a real vLLM with speculative decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, EXAMPLES, LOST, WRONG, Bench, one_for_each_requirement, open_bench
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.schema.verdict import FailureClass, Verdict
from coldproof.suites import test_drafts as drafts

pytestmark = pytest.mark.engine
N_GRAM, DRAFT_MODEL, EAGLE = (CELLS[f"speculative{kind}"] for kind in ("", "-model", "-eagle"))
ON_A_HIT, BESIDE_A_FULL_CONTEXT = drafts.test_drafts_on_a_hit, drafts.test_drafts_on_a_hit_left_beside_a_full_context
MORE = 3 * EXAMPLES  # for what few of the workloads show
BROKEN: list[tuple[str, Cell, tuple[FailureClass, ...], int]] = [
    ("a-hit-lacks-the-draft-models-kv", DRAFT_MODEL, LOST, EXAMPLES),
    ("the-last-block-of-a-hit-lacks-the-draft-models-kv", DRAFT_MODEL, LOST, EXAMPLES),
    ("a-request-that-hit-gets-no-drafts", DRAFT_MODEL, LOST, EXAMPLES),
    ("the-drafts-of-a-hit-are-shifted", DRAFT_MODEL, LOST, EXAMPLES),
    ("the-drafts-of-a-hit-are-not-verified", DRAFT_MODEL, WRONG, EXAMPLES),
    ("the-drafts-of-a-hit-are-not-verified", N_GRAM, WRONG, EXAMPLES),
    ("hits-keep-the-last-block-of-an-eagle-head", EAGLE, LOST, MORE),
    ("the-slot-of-a-rejected-draft-is-published", N_GRAM, ANY_HIT, MORE),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run with the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("drafts") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("fault", "cell", "classes", "examples"),
    one_for_each_requirement(BROKEN, test=ON_A_HIT),
)
def test_an_injected_fault_is_detected(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    fault: str,
    cell: Cell,
    classes: tuple[FailureClass, ...],
    examples: int,
) -> None:
    """The requirement is violated with a failure class that fits, and confirmed on a fresh engine with the same
    fault.
    """
    plant(fault, monkeypatch)
    case = bench.violation(ON_A_HIT, cell, examples=examples)
    assert case.failure_class in classes, case.sentence
    assert case.signature.endswith("; fewer drafts accepted") is (classes is LOST), case.signature


@pytest.mark.parametrize(
    "cell", with_samples([N_GRAM, DRAFT_MODEL, EAGLE], DRAFT_MODEL), ids=["n-grams", "draft model", "EAGLE"]
)
@pytest.mark.parametrize(
    "test", with_samples([drafts.test_drafts_on_a_hit, BESIDE_A_FULL_CONTEXT], BESIDE_A_FULL_CONTEXT)
)
def test_vllms_unmodified_scheduler_conforms(bench: Bench, test: Callable[..., None], cell: Cell) -> None:
    """There is no finding without a fault. The fingerprint worker drafts in every step, unlike vLLM's worker."""
    verdict, reason, cases = bench.verdict(test, cell, examples=40)
    assert (verdict, cases) == (Verdict.CONFORMS, []), reason


@pytest.mark.nightly
def test_the_known_issue_of_vllms_draft_model_is_detected(tmp_path_factory: pytest.TempPathFactory) -> None:
    """vLLM skips the draft model for a whole step in which one request is too long for it.

    This happens without an injected fault and with a real draft model. It is a known issue.
    """
    with open_bench(tmp_path_factory.mktemp("draft model") / "report") as made:
        conforming, reason, _ = made.verdict(ON_A_HIT, DRAFT_MODEL, examples=4)
        assert conforming is not Verdict.VIOLATED, reason
        case = made.violation(BESIDE_A_FULL_CONTEXT, DRAFT_MODEL, examples=EXAMPLES)
    assert case.signature == "lost reuse; no reload; fewer drafts accepted"
