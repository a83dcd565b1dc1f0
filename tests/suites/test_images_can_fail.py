"""Every requirement about images can fail: a real vLLM is broken for it. The fingerprint worker makes it cheap.

The tests are those that vLLM conforms to, except for the resumed requests, which the engine as it is violates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from support.faults import plant
from support.faulty_runs import ANY_HIT, EXAMPLES, LOST, Bench, one_for_each_requirement, open_bench
from support.nightly import with_samples

from coldproof.adapters.registry import CELLS
from coldproof.adapters.spec.cell import Cell
from coldproof.reports.schema.verdict import FailureClass
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
    (images.test_the_same_images_again, "each-image-is-new", IMAGES, LOST),
    (images.test_images_at_the_end, "images-are-not-hashed", IMAGES, SHARED),
    (images.test_images_in_a_small_pool, "a-block-within-a-cut-image-is-published", TIGHT, SHARED),
    (images.test_images_in_a_small_pool, "encoder-outputs-are-freed-while-they-are-needed", TIGHT, CRASH),
    (images.test_images_in_a_small_pool, "a-full-encoder-cache-stops-no-chunk", TIGHT, CRASH),
    (images.test_images_over_new_weights, "a-reset-keeps-the-encoders-outputs", IMAGES, SHARED),
    (images.test_images_over_new_weights, "a-pause-keeps-the-encoders-outputs", IMAGES, SHARED),
    (images.test_resets_of_one_cache_of_images, "the-scheduler-remembers-outputs-that-were-reset", IMAGES, CRASH),
    (images.test_resets_of_one_cache_of_images, "the-frontend-remembers-images-that-were-reset", IMAGES, CRASH),
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
    """With the worker that has no model."""
    with open_bench(tmp_path_factory.mktemp("images") / "report", "fingerprint") as made:
        yield made


@pytest.mark.parametrize(
    ("test", "fault", "cell", "classes"),
    one_for_each_requirement(BROKEN),
)
def test_a_broken_engine_is_found_out(
    bench: Bench,
    monkeypatch: pytest.MonkeyPatch,
    test: Callable[..., None],
    fault: str,
    cell: Cell,
    classes: tuple[FailureClass, ...],
) -> None:
    """VIOLATED, confirmed on a fresh engine with the same fault, for a reason that fits it."""
    plant(fault, monkeypatch)
    case = bench.violation(test, cell, examples=EXAMPLES)
    assert case.failure_class in classes, case.sentence


@pytest.mark.parametrize(
    ("test", "cell", "words"),
    with_samples(KNOWN, KNOWN[-1]),
)
def test_vllm_as_it_is_is_found_out(bench: Bench, test: Callable[..., None], cell: Cell, words: str) -> None:
    """Without a fault: these are known issues."""
    assert bench.violation(test, cell, examples=EXAMPLES).signature.endswith(words)
