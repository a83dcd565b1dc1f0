# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""An image's key depends on the contents of its adapter (tests/v1/engine/test_process_multi_modal_uuids.py)."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from vllm.lora.request import LoRARequest
from vllm.v1.engine.input_processor import InputProcessor


def mm_identifier(path: Path, tower: bool = True) -> str:
    processor = SimpleNamespace(lora_config=SimpleNamespace(enable_tower_connector_lora=tower))
    return InputProcessor._get_mm_identifier(processor, "hash", LoRARequest("tenant", 1, str(path)))


@pytest.mark.parametrize("replaced", [True, False])
def test_mm_identifier_depends_on_adapter_contents(tmp_path: Path, replaced: bool) -> None:
    weights = tmp_path / "adapter_model.safetensors"
    weights.write_bytes(b"weights of A")
    before = mm_identifier(tmp_path)

    weights.write_bytes(b"weights of B" if replaced else b"weights of A")

    assert (mm_identifier(tmp_path) != before) is replaced


def test_mm_identifier_without_tower_lora_is_the_hash(tmp_path: Path) -> None:
    assert mm_identifier(tmp_path, tower=False) == "hash"
