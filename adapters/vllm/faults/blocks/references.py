"""Blocks that a hit returns and how long they are held: freed too early, held too late, in the wrong order."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import coordinator, manager, module, pool
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around

FAULTS, fault = collector("holding")

LONG_HIT = 8  # blocks


def free_with_first_holder(patch: Patch, *, least: int) -> None:
    """Free a block that at least `least` requests hold when the first of them ends."""
    remaining: dict[int, int] = {}  # block -> number of requests that still hold it and will free it again

    @around(patch, pool(), "free_blocks")
    def free(original: Any, this: Any, blocks: Any) -> None:
        freed = []
        for block in blocks:
            if remaining.get(id(block)):
                remaining[id(block)] -= 1
                continue
            if this.enable_caching and not block.is_null and block.ref_cnt >= least:
                remaining[id(block)], block.ref_cnt = block.ref_cnt - 1, 1
            freed.append(block)
        original(this, freed)

    @after(patch, pool(), "get_new_blocks")
    def new_blocks(blocks: Any, _this: Any, _count: int) -> None:
        if any(remaining.get(id(block)) for block in blocks):
            acted()


@fault("PRESS-2", stands_for="sgl-project/mini-sglang PR#142", cells=TIGHT)
def shared_blocks_are_freed_with_their_first_holder(patch: Patch) -> None:
    """A block that several requests hold is freed, and can be allocated again, when the first of them ends."""
    free_with_first_holder(patch, least=2)


@fault(
    "PRESS-2",
    stands_for="sgl-project/mini-sglang PR#142",
    cells=TIGHT,
    rare="only for blocks that three or more requests hold",
)
def blocks_of_three_are_freed_with_their_first_holder(patch: Patch) -> None:
    """A block that three or more requests hold is freed, and can be allocated again, when the first of them ends."""
    free_with_first_holder(patch, least=3)


@fault("PRESS-1", stands_for="vllm PR#10507, vllm#37076", cells=TIGHT)
def hits_are_held_too_late(patch: Patch) -> None:
    """The blocks that a request hit leave the free queue only after its new blocks were allocated, which may be the
    same blocks.
    """
    late: list[Any] = []

    @around(patch, manager(), "allocate_slots")
    def allocate(original: Any, this: Any, *args: Any, **kwargs: Any) -> Any:
        late.append([])
        try:
            return original(this, *args, **kwargs)
        finally:
            for block in late.pop():
                if block.ref_cnt:
                    acted()
                    block.ref_cnt += 1
                else:
                    this.block_pool.touch([block])

    @around(patch, pool(), "touch")
    def touch(original: Any, this: Any, blocks: Any) -> None:
        if not late:
            original(this, blocks)
            return
        late[-1] += [block for block in blocks if block.ref_cnt == 0 and not block.is_null]
        original(this, [block for block in blocks if block.ref_cnt or block.is_null])


def swap_last_blocks(patch: Patch, swaps: Callable[[Any], bool]) -> None:
    """Swap the last two blocks of a hit where `swaps(blocks)` is true."""

    @around(patch, coordinator("Unitary"), "find_longest_cache_hit")
    def found(original: Any, this: Any, hashes: Any, longest: int) -> Any:
        groups, length, rest = original(this, hashes, longest)
        if len(groups[0]) >= 2 and swaps(groups[0]):
            acted()
            groups = tuple([*blocks[:-2], blocks[-1], blocks[-2]] for blocks in groups)
        return groups, length, rest


@fault("REUSE-1", stands_for="TGI PR#2711")
def a_hits_blocks_change_places(patch: Patch) -> None:
    """The last two blocks of a hit are in the wrong order."""
    swap_last_blocks(patch, lambda _: True)


@fault("REUSE-1", stands_for="TGI PR#2711", rare="only for hits of eight blocks or more")
def a_long_hits_blocks_change_places(patch: Patch) -> None:
    """The last two blocks of a hit of eight or more blocks are in the wrong order."""
    swap_last_blocks(patch, lambda blocks: len(blocks) >= LONG_HIT)


@fault("REUSE-1", stands_for="kvcached#446", rare="only from the third hit of a block on")
def from_the_third_hit_on_blocks_change_places(patch: Patch) -> None:
    """The last two blocks of a hit are in the wrong order after the last one has been hit twice before."""
    hits: Counter[Any] = Counter()

    def swaps(blocks: Any) -> bool:
        hits[blocks[-1].block_hash] += 1
        return hits[blocks[-1].block_hash] >= 3

    swap_last_blocks(patch, swaps)


@fault("CHAT-1", stands_for="vllm PR#37152", rare="only where two blocks have the same hash")
def a_hit_takes_the_wrong_one_of_equal_blocks(patch: Patch) -> None:
    """Where two blocks have the same hash, a lookup returns a neighbouring block instead."""

    @around(patch, module("v1.core.block_pool").BlockHashToBlockMap, "get_one_block")
    def one(original: Any, index: Any, key: Any) -> Any:
        block = original(index, key)
        if isinstance(index._cache.get(key), dict):
            acted()
            blocks = block.pool.blocks
            return blocks[(block.block_id + 1) % len(blocks) or 1]
        return block
