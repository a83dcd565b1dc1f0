"""The positions at which layers with a sliding window or a state can be hit: those for which they keep blocks.

A window needs the blocks just below the end of a hit, a state the one that ends there. vLLM keeps them for a few
positions only (`--prefix-cache-retention-interval`, vllm/config/cache.py: "`0` retains only semantic checkpoints,
including the latest replay boundary and shared-prefix junctions. Positive values additionally retain periodic
checkpoints at the specified interval [...]. `None` retains checkpoints densely"):

* the replay boundary of each prompt, its last whole block before its last token (`replay_boundaries` in
  vllm/v1/core/kv_cache_coordinator.py);
* a junction: where a prompt was found to part from all earlier ones, because layers with full attention had a longer
  hit than the others (`get_computed_blocks` in kv_cache_manager.py). The second prompt with a prefix finds the
  junction, so that the third one hits it;
* each multiple of the interval, or each block, over prompt and answer (`SlidingWindowManager.reachable_block_mask` in
  single_type_kv_cache_manager.py). For states, only if a chunk ends there, so that no multiple is certain.

So a hit ends at the last of these positions up to which the prompts are equal. What a request loads from a second tier
it has for the end of the load alone, so that it leaves nothing at the positions before. Pure.
"""

from __future__ import annotations

from coldproof.adapters.protocol.shape import EngineShape, GroupShape
from coldproof.harness.history.records import Outcome

SEMANTIC = 2  # positions that a request keeps whatever the interval: its replay boundary and its junction


def last_kept_position(shape: EngineShape, other: Outcome, outcome: Outcome, shared: float, junction: int) -> float:
    """Return the last position within `shared` tokens for which the layers kept what `other` had computed.

    `junction`: where `other` parted from all earlier prompts; 0 if that is unknown. Sessions keep only what was there
    before, because they may have passed the boundary of a turn while they decoded an earlier one. If the interval is
    unknown, only a prompt that is sent again is certain.
    """
    if shape.block_size is None:
        return shared if other.prompt == outcome.prompt and not other.session else 0
    longest = int(min(shared, len(outcome.prompt) - 1))
    boundary = (len(other.prompt) - 1) // shape.block_size * shape.block_size
    kept: tuple[int, ...]
    if other.session or outcome.session or shape.kept_every is None:
        kept = (boundary,) if other.prompt == outcome.prompt and not other.session else ()
    else:
        kept = (boundary, junction, longest // shape.kept_every * shape.kept_every if shape.kept_every else 0)
    loaded = end_of_load(shape, other)
    return max((position for position in kept if loaded <= position <= longest), default=0)


def end_of_load(shape: EngineShape, other: Outcome) -> int:
    """Return how many tokens of a request a second tier may have loaded: its hit, or all if that is unknown."""
    if not shape.second_tier:
        return 0
    return len(other.prompt) if other.hit_at_most is None else other.hit_at_most


def blocks_left(shape: EngineShape, tokens: int, hit: int) -> int:
    """Return an upper bound of the blocks that a request of `tokens` tokens leaves in the cache, in all known groups,
    if it shares the first `hit` tokens with others.
    """
    return sum(
        -(-tokens // group.block) - hit // group.block if group.tail is None else kept_blocks(shape, group, tokens, hit)
        for group in shape.groups
    )


def kept_blocks(shape: EngineShape, group: GroupShape, tokens: int, hit: int) -> int:
    """Return the most blocks of a group with windows or states that are kept for a request's positions after `hit`."""
    every = shape.kept_every
    positions = SEMANTIC + (tokens // every - hit // every if every else 0)
    return min(-(-tokens // group.block), (group.tail or 0) * positions)


def blocks_of_windows(shape: EngineShape, tokens: int) -> int:
    """Return the most blocks of windows and states that a request holds while it runs. Those that are kept for no
    position are the first to be used again (`BlockPool.free_blocks` in vllm/v1/core/block_pool.py).
    """
    return sum(group.blocks(tokens) for group in shape.groups if group.tail is not None)
