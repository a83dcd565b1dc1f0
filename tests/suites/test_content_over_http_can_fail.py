"""Faults of servers alone are detected: endpoints, content over HTTP and routes for scores.

Other faults of images and pooled answers are detected in process (test_images_can_fail.py,
test_pooling_can_fail.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from support.faulty_runs import ANY_HIT, one_for_each_requirement, open_bench

from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults import plugin
from coldproof.harness.schema.verdict import FailureClass
from coldproof.suites import test_endpoints as endpoints
from coldproof.suites import test_images as images
from coldproof.suites import test_pooling as pooling

pytestmark = pytest.mark.engine
EXAMPLES = 4
BROKEN: list[tuple[Callable[..., None], str, str]] = [
    (endpoints.test_salts_and_adapters_at_every_endpoint, "the-token-route-drops-the-salt", "default"),
    (pooling.test_vectors_on_a_hit, "the-score-routes-drop-the-salt", "pooling-scores"),
    (pooling.test_vectors_on_a_hit, "the-cosine-route-drops-the-salt", "pooling"),
]


@pytest.mark.nightly
def test_a_server_that_drops_the_salt_beside_an_image(tmp_path: Path) -> None:
    """The requirement is violated and confirmed on a fresh server with the same fault."""
    fault, test = "a-salt-is-dropped-from-images", images.test_other_images_behind_equal_tokens
    with (
        open_bench(tmp_path / "report", "fingerprint", engine="vllm", replays=2) as bench,
        plugin.injected(fault, tmp_path / "fault"),
    ):
        case = bench.violation(test, CELLS["images"], examples=EXAMPLES)
    assert case.failure_class in (*ANY_HIT, FailureClass.NOT_THE_CACHE), case.sentence
    assert case.signature.endswith("images")
    assert plugin.count_markers(tmp_path / "fault", "acted") > 0


@pytest.mark.parametrize(("test", "fault", "cell"), one_for_each_requirement(BROKEN, elsewhere=["POOL-1"]))
def test_a_server_that_drops_a_salt(tmp_path: Path, test: Callable[..., None], fault: str, cell: str) -> None:
    """The requirement is violated: no answer is wrong, but a request hits another salt's blocks or misses its own."""
    with (
        open_bench(tmp_path / "report", "fingerprint", engine="vllm", replays=2) as bench,
        plugin.injected(fault, tmp_path / "fault"),
    ):
        case = bench.violation(test, CELLS[cell], examples=5 * EXAMPLES, fresh=False)
    assert case.failure_class in (*ANY_HIT, FailureClass.LOST_REUSE), case.sentence
    assert plugin.count_markers(tmp_path / "fault", "acted") > 0
