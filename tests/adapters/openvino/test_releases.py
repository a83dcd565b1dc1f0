"""Each release of OpenVINO GenAI is called through its own Python interface."""

from __future__ import annotations

from types import SimpleNamespace as Stand
from typing import Any

import pytest

from coldproof.adapters.openvino.releases import NOT_REPORTED, Release, takes_images


class Handle:
    """A handle that records how it was cancelled."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def cancel(self) -> None:
        """Record a cancel, as releases from 2025.1 on have it."""
        self.calls.append("cancel")

    def drop(self) -> None:
        """Record a drop, as earlier releases have it."""
        self.calls.append("drop")


@pytest.mark.parametrize(
    ("version", "call"), [("2024.6.0.0", "drop"), ("2025.0.0.0", "drop"), ("2025.1.0.0", "cancel")]
)
def test_a_request_is_cancelled_as_the_release_can(version: str, call: str) -> None:
    """2025.0 has no cancel(), and later releases may have no drop()."""
    handle = Handle()
    Release(version).cancel(handle)
    assert handle.calls == [call]


def test_a_configuration_is_text_on_every_release() -> None:
    """Before 2025.4 a configuration cannot be printed, so its numbers and switches are listed."""
    configuration: Any = Stand(num_kv_blocks=24, dynamic_split_fuse=True, to_string=lambda: "SchedulerConfig\n{ 24 }")
    assert Release("2025.3.0.0").scheduler_text(configuration) == "dynamic_split_fuse: True num_kv_blocks: 24"
    assert Release("2025.4.0.0").scheduler_text(configuration) == "SchedulerConfig { 24 }"


def test_generate_reports_why_an_answer_ended_from_2026_2_on() -> None:
    """Earlier releases do not report the reason, and none is made up."""
    result: Any = Stand(finish_reasons=[Stand(name="LENGTH")])
    assert Release("2026.2.0.0").finish_reason(result) == "LENGTH"
    assert Release("2026.1.0.0").finish_reason(Stand()) == NOT_REPORTED


def test_a_release_without_handles_is_refused() -> None:
    """The Python interface of that release has no steps."""
    with pytest.raises(ValueError, match=r"2024\.6"):
        Release("2024.5.0.0")


@pytest.mark.parametrize(("words", "expected"), [("prompt: str, images: list", True), ("input_ids: Tensor", False)])
def test_images_need_a_pipeline_that_documents_them(words: str, expected: bool) -> None:
    """Whether a release takes images follows from the documentation of its pipeline, not from its version."""
    assert takes_images(Stand(add_request=Stand(__doc__=words))) is expected
    assert not takes_images(Stand(add_request=Stand(__doc__=None)))
