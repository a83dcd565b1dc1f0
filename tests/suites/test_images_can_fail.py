"""Every requirement about images can fail: faults are injected into a real vLLM with the fingerprint worker.

The unmodified vLLM conforms to these tests, except to the one about resumed requests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, EXAMPLES, LOST, Bench, one_for_each_requirement, open_bench
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.harness.schema.verdict import FailureClass
from coldproof.suites import test_images as images

pytestmark = pytest.mark.engine
IMAGES, TIGHT, TOWERS = CELLS["images"], CELLS["images-tight"], CELLS["images-towers"]
SHARED, CRASH = (*ANY_HIT, FailureClass.NOT_THE_CACHE), (FailureClass.CRASH, FailureClass.NOT_THE_CACHE)
BROKEN: list[tuple[Callable[..., None], str, Cell, tuple[FailureClass, ...]]] = [
    (images.test_other_images_behind_equal_tokens, "a-salt-is-dropped-from-images", IMAGES, SHARED),
    (images.test_other_images_behind_equal_tokens, "images-are-not-hashed", IMAGES, SHARED),
    (images.test_other_images_behind_equal_tokens, "images-are-hashed-by-their-size", IMAGES, SHARED),
    (images.test_other_images_behind_equal_tokens, "images-are-hashed-where-they-end", IMAGES, SHARED),
    (images.test_other_images_behind_equal_tokens, "an-adapter-is-dropped-from-images", IMAGES, SHARED),
    (images.test_other_arguments_of_the_processor, "image-hashes-ignore-the-processor", IMAGES, SHARED),
    (images.test_other_arguments_of_the_processor, "images-of-two-modes-have-one-hash", IMAGES, SHARED),
    (images.test_the_same_images_again, "each-image-is-new", IMAGES, LOST),
    (images.test_images_at_the_end, "images-are-not-hashed", IMAGES, SHARED),
    (images.test_images_in_a_small_pool, "a-block-within-a-cut-image-is-published", TIGHT, SHARED),
    (images.test_images_in_a_small_pool, "encoder-outputs-are-freed-while-they-are-needed", TIGHT, CRASH),
    (images.test_images_in_a_small_pool, "a-full-encoder-cache-stops-no-chunk", TIGHT, CRASH),
    (images.test_images_over_new_weights, "a-reset-keeps-the-encoders-outputs", IMAGES, SHARED),
    (images.test_images_over_new_weights, "a-pause-keeps-the-encoders-outputs", IMAGES, SHARED),
    (images.test_resets_of_one_cache_of_images, "the-scheduler-remembers-outputs-that-were-reset", IMAGES, CRASH),
    (images.test_resets_of_one_cache_of_images, "the-frontend-remembers-images-that-were-reset", IMAGES, CRASH),
    (images.test_resets_of_one_cache_of_images, "a-pause-leaves-the-front-ends-images", IMAGES, CRASH),
    (images.test_images_of_several_towers, "towers-share-their-outputs", TOWERS, SHARED),
]


KNOWN: list[tuple[Callable[..., None], Cell, str]] = [
    (images.test_other_images_under_the_same_name, IMAGES, "images; named by the client"),
    (images.test_the_same_images_in_other_files, IMAGES, "images; in files"),
    (images.test_images_of_resumed_requests, TIGHT, "images"),
    (images.test_images_over_reloads, TOWERS, "other path; between requests; images"),
]


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    """Yield a run with the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("images") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes"),
    one_for_each_requirement(BROKEN),
)
def test_an_injected_fault_is_detected(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    classes: tuple[FailureClass, ...],
) -> None:
    """The requirement is violated with a failure class that fits, and confirmed on a fresh engine with the same
    fault.
    """
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=EXAMPLES)
    assert case.failure_class in classes, case.sentence


@pytest.mark.parametrize(
    ("test", "cell", "words"),
    with_samples(KNOWN, KNOWN[-1]),
)
def test_known_issues_of_unmodified_vllm_are_detected(
    bench: Bench, test: Callable[..., None], cell: Cell, words: str
) -> None:
    """These are known issues of the unmodified engine."""
    assert bench.violation(test, cell, examples=EXAMPLES).signature.endswith(words)
