"""What a qualification records of its model: enough to distinguish two models on another machine."""

from __future__ import annotations

import hashlib
from pathlib import Path

from coldproof.harness.execution.models.trained import TRAINED, described_model
from coldproof.harness.release.run.record import model_digest


def test_a_model_is_recorded_by_the_digest_of_its_file_or_its_configuration(tmp_path: Path) -> None:
    """The generated model needs no digest."""
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "model.gguf").write_bytes(b"weights")
    assert model_digest(str(tmp_path)) == hashlib.sha256(b"{}").hexdigest()
    assert model_digest(str(tmp_path / "model.gguf")) == hashlib.sha256(b"weights").hexdigest()
    assert model_digest(None) == ""


def test_a_trained_model_is_recorded_by_its_name_and_its_published_digest() -> None:
    """Its float32 weights and its published weights are different models."""
    digest = TRAINED["smollm2"].sha256
    assert described_model("smollm2") == f"smollm2 {digest}"
    assert described_model("smollm2.gguf") == f"smollm2.gguf {digest}"
    assert described_model("/models/mine") is None
    assert described_model(None) is None
