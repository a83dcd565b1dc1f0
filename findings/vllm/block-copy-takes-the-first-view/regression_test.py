# SPDX-License-Identifier: Apache-2.0
# SPDX-FileCopyrightText: Copyright contributors to the vLLM project
"""Views of one address are told apart (tests/v1/worker/test_utils.py)."""

import pytest
import torch
from vllm.v1.worker.utils import copy_kv_cache_blocks_inplace

BLOCKS, PAGE = 4, 64


@pytest.mark.parametrize("state_first", [True, False])
def test_copy_covers_all_views_of_an_address(state_first: bool) -> None:
    # Two layers for each group, so that the storage is larger than one layer's blocks.
    storage = torch.arange(2.0 * BLOCKS * PAGE).reshape(2, BLOCKS, PAGE)
    expected = storage.clone()
    expected[0, 2] = expected[0, 1]

    attention, padded_state = storage[0], storage[0, :, :10]
    views = [padded_state, attention] if state_first else [attention, padded_state]
    copy_kv_cache_blocks_inplace(views, BLOCKS, [(1, 2)])

    torch.testing.assert_close(storage, expected)


def test_layers_that_share_a_view_are_copied_once() -> None:
    storage = torch.arange(2.0 * BLOCKS * PAGE).reshape(2, BLOCKS, PAGE)
    expected = storage.clone()
    expected[0, 2], expected[0, 1] = storage[0, 1], storage[0, 0]

    copy_kv_cache_blocks_inplace([storage[0], storage[0]], BLOCKS, [(1, 2), (0, 1)])

    torch.testing.assert_close(storage, expected)
