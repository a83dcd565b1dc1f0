"""What only a server does can be broken: content that it gets over HTTP, and its routes for scores.

The other faults of images and of pooled answers are detected in process (test_images_can_fail.py,
test_pooling_can_fail.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faulty_runs import ANY_HIT, opened

from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults import plugin
from coldproof.reports.schema.verdict import FailureClass
from coldproof.suites import test_images as images
from coldproof.suites import test_pooling as pooling

pytestmark = pytest.mark.engine
EXAMPLES = 4


def test_a_server_that_drops_the_salt_beside_an_image(tmp_path: Path) -> None:
    """VIOLATED, confirmed on a fresh server with the same fault."""
    fault, test = "a-salt-is-dropped-from-images", images.test_other_images_behind_equal_tokens
    with (
        opened(tmp_path / "report", "fingerprint", engine="vllm", replays=2) as bench,
        plugin.injected(fault, tmp_path / "fault"),
    ):
        case = bench.violation(test, CELLS["images"], examples=EXAMPLES)
    assert case.failure_class in (*ANY_HIT, FailureClass.NOT_THE_CACHE), case.sentence
    assert case.signature.endswith("images")
    assert plugin.count_markers(tmp_path / "fault", "acted") > 0


@pytest.mark.parametrize(
    ("fault", "cell"),
    [("the-routes-for-scores-drop-the-salt", "pooling-scores"), ("the-route-for-cosines-drops-the-salt", "pooling")],
)
def test_a_server_that_drops_the_salt_of_scores(tmp_path: Path, fault: str, cell: str) -> None:
    """VIOLATED: no answer is wrong, and the hit counter shows it."""
    with (
        opened(tmp_path / "report", "fingerprint", engine="vllm", replays=2) as bench,
        plugin.injected(fault, tmp_path / "fault"),
    ):
        case = bench.violation(pooling.test_vectors_on_a_hit, CELLS[cell], examples=5 * EXAMPLES, fresh=False)
    assert case.failure_class in ANY_HIT, case.sentence
    assert plugin.count_markers(tmp_path / "fault", "acted") > 0
