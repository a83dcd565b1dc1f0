"""Content that a server gets over HTTP can be confused: the fault is injected into the process that hashes blocks.

The other faults of images are detected in process (test_images_can_fail.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
from support.faulty_runs import ANY_HIT, opened

from coldproof.adapters.registry import CELLS
from coldproof.adapters.vllm.faults import plugin
from coldproof.reports.schema.verdict import FailureClass
from coldproof.suites import test_images as images

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]
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
