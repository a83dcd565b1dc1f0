"""Coldproof's connector with two groups: a load reads what the next token attends to, and no more."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from vllm.v1.kv_cache_interface import FullAttentionSpec, SlidingWindowSpec

from coldproof.adapters.vllm.fingerprint.connectors.failing import Key, TransferPlanner, window_of

WINDOW, FULL = 0, 1  # the groups
BLOCK, BLOCKS = 32, 6


def planner(*, failing: bool = False) -> TransferPlanner:
    """Return a planner for a window of 64 tokens and full attention."""
    return TransferPlanner(block=BLOCK, asynchronous=True, failing=failing, capacity=100, windows=(64, None))


def request(tokens: int = BLOCK * BLOCKS + 1) -> Any:
    """Return a request of this many tokens, whose block n has the hash n."""
    hashes = [bytes([number]) for number in range(tokens // BLOCK)]
    return SimpleNamespace(request_id="r", num_tokens=tokens, num_prompt_tokens=tokens, block_hashes=hashes)


def key(group: int, number: int) -> Key:
    """Return the key of a block."""
    return group, bytes([number])


def test_of_a_window_only_the_last_blocks_are_needed() -> None:
    """Token 192 attends to the tokens from 129 on, which begin in block 4."""
    numbers = [(group, number) for number, (group, _) in planner().needed(request(), 2, 6)]
    assert numbers == [(WINDOW, 4), (WINDOW, 5), (FULL, 2), (FULL, 3), (FULL, 4), (FULL, 5)]


@pytest.mark.parametrize(
    ("missing", "tokens"),
    [
        ([], 192),
        ([key(WINDOW, 0), key(WINDOW, 3)], 192),  # outside of the window
        ([key(WINDOW, 5)], 160),
        ([key(WINDOW, 4)], 128),  # a hit of 160 needs it, too
        ([key(FULL, 3)], 96),
        ([key(FULL, 0)], 0),
    ],
)
def test_a_hit_ends_where_every_group_has_what_it_needs(missing: list[Key], tokens: int) -> None:
    """A missing block of full attention ends all hits after it; one of a window ends only the hits that would read
    it.
    """
    one = planner()
    everything = [key(group, number) for group in (WINDOW, FULL) for number in range(BLOCKS)]
    one.stored.update(dict.fromkeys(wanted for wanted in everything if wanted not in missing))
    assert one.match(request(), 0) == (tokens, tokens > 0)


def test_a_group_that_both_kinds_share_keeps_everything() -> None:
    """As in vLLM 0.20 with any connector, the specification of full attention then names the window of the others."""
    sizes = {"block_size": BLOCK, "num_kv_heads": 1, "head_size": 8, "dtype": torch.float32, "sliding_window": 64}
    assert window_of(FullAttentionSpec(**sizes)) is None
    assert window_of(SlidingWindowSpec(**sizes)) == 64


def test_a_load_fails_in_the_last_block_of_every_group() -> None:
    """A prompt of 194 tokens is two more than a multiple of three. The second load of a request succeeds."""
    one, sent = planner(failing=True), request(194)
    numbers = [number for number, _ in one.needed(sent, 2, 6)]
    assert one.unreadable(sent, numbers) == {1, 5}
    assert one.unreadable(sent, numbers) == set()
