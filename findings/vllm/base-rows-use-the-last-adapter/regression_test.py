# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Rows without an adapter are left alone by the CPU kernels (tests/lora/test_punica_ops.py)."""

import pytest
import torch
from vllm.lora.ops.torch_ops import bgmv_expand, bgmv_expand_slice, bgmv_shrink

RANK, HIDDEN, SLOTS = 8, 32, 2


@pytest.fixture
def rows() -> tuple[torch.Tensor, torch.Tensor]:
    """Three rows: of the base model (-1), of the first and of the last slot."""
    torch.manual_seed(0)
    return torch.randn(3, HIDDEN), torch.tensor([-1, 0, SLOTS - 1])


def test_bgmv_shrink_of_base_rows(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    inputs, indices = rows
    lora_a = torch.randn(SLOTS, 1, RANK, HIDDEN)
    output = torch.zeros(3, RANK)
    bgmv_shrink(inputs, lora_a, output, indices)
    expected = torch.stack([torch.zeros(RANK), lora_a[0, 0] @ inputs[1], lora_a[1, 0] @ inputs[2]])
    torch.testing.assert_close(output, expected)


def test_bgmv_expand_of_base_rows(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    inputs, indices = rows
    lora_b = torch.randn(SLOTS, 1, HIDDEN, HIDDEN)
    base = torch.randn(3, HIDDEN)
    output = base.clone()
    bgmv_expand(inputs, lora_b, output, indices, add_inputs=True)
    torch.testing.assert_close(output[0], base[0])
    torch.testing.assert_close(output[2], base[2] + lora_b[1, 0] @ inputs[2])


def test_bgmv_expand_slice_of_base_rows(rows: tuple[torch.Tensor, torch.Tensor]) -> None:
    inputs, indices = rows
    lora_b = torch.randn(SLOTS, 1, 16, HIDDEN)
    base = torch.randn(3, 48)
    output = base.clone()
    bgmv_expand_slice(inputs, lora_b, output, indices, 16, 16, add_inputs=True)
    torch.testing.assert_close(output[0], base[0])
    torch.testing.assert_close(output[1, 16:32], base[1, 16:32] + lora_b[0, 0] @ inputs[1])
