"""Prompts with images: where the first image ends within a block, a hit can end within the image."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from coldproof.harness.features.images.workloads import prompts_with_images
from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.tokens import NONCE_TOKENS


@pytest.mark.parametrize("tokens", [2, 13, 16, 17, 64])
@pytest.mark.parametrize("block", [4, 16])
@given(data=st.data())
def test_the_first_image_ends_within_a_block(data: st.DataObject, block: int, tokens: int) -> None:
    limits = WorkloadLimits(block=block, slots=4, contents=("A",), mixtures=frozenset(), image_tokens=tokens)
    text, image, *_ = data.draw(prompts_with_images(limits, cut=True))
    start = NONCE_TOKENS + text.length
    end = start + image.length
    assert image.image is not None
    assert start < end // limits.unit * limits.unit < end
