"""Several groups of KV-cache blocks: wrong windows, states and lookups."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import coordinator, manager, module, pool
from coldproof.adapters.vllm.faults.patching import acted, after, after_lookup, around, before

FAULTS, fault = collector("groups")

WINDOW = ("groups-window",)


def groups_of(kind: str) -> Any:
    """Return the class that manages the blocks of one kind of layers."""
    return getattr(module("v1.core.single_type_kv_cache_manager"), f"{kind}Manager")


def shrink_windows(patch: Patch, divisor: Callable[[Any, int], int]) -> None:
    """Require for a hit only the blocks of a window that is shorter by `divisor(spec, maximum length of the hit)`."""

    @around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit")
    def found(original: Any, **kwargs: Any) -> Any:
        spec = kwargs["kv_cache_spec"]
        part = dataclasses.replace(spec, sliding_window=spec.sliding_window // divisor(spec, kwargs["max_length"]))
        found = original(**{**kwargs, "kv_cache_spec": part})
        if block_numbers(found) != block_numbers(original(**kwargs)):
            acted()
        return found


def block_numbers(found: Any) -> list[list[int]]:
    """Return the block numbers of a lookup, for each group."""
    return [[block.block_id for block in blocks] for blocks in found[0]]


@fault("GROUP-1", stands_for="TRT PR#10875", cells=WINDOW)
def half_a_window_is_kept(patch: Patch) -> None:
    """A hit requires only half the blocks that a window reads. The other half has arbitrary content."""
    shrink_windows(patch, lambda _spec, _longest: 2)


@fault("GROUP-1", stands_for="TRT PR#10875", cells=WINDOW, rare="only for prompts longer than four windows")
def half_a_window_is_kept_of_long_prompts(patch: Patch) -> None:
    """Where a prompt is longer than four windows, a hit requires only half the blocks that a window reads."""
    shrink_windows(patch, lambda spec, longest: 2 if longest > 4 * spec.sliding_window else 1)


@fault("GROUP-1", stands_for="TRT PR#10875", cells=WINDOW, rare="only for prompts that end one token after a block")
def half_a_window_is_kept_at_the_ends_of_blocks(patch: Patch) -> None:
    """Where a prompt without its last token consists of whole blocks, a hit requires only half the blocks that a window
    reads.
    """
    shrink_windows(patch, lambda spec, longest: 1 if longest % spec.block_size else 2)


@fault("GROUP-1", stands_for="TRT PR#10875", cells=("groups-two-windows",))
def the_smaller_window_decides(patch: Patch) -> None:
    """Where layers have windows of two lengths, a hit requires only as many blocks as the smaller window reads."""
    seen: set[int] = set()

    def divisor(spec: Any, _longest: int) -> int:
        seen.add(spec.sliding_window)
        return int(spec.sliding_window // min(seen))

    shrink_windows(patch, divisor)


@fault("GROUP-1", stands_for="vllm#46453, TRT PR#10183", cells=WINDOW)
def the_longest_group_decides(patch: Patch) -> None:
    """A hit is as long as the longest hit of the groups, not the shortest."""

    @around(patch, coordinator("Hybrid"), "find_longest_cache_hit")
    def found(original: Any, this: Any, hashes: Any, longest: int) -> Any:
        blocks, length, rest = original(this, hashes, longest)
        each, lengths = this.find_longest_cache_hit_per_group(hashes, longest)
        if max(lengths) <= length:
            return blocks, length, rest
        acted()
        return each, max(lengths), 0


@fault("GROUP-1", stands_for="vllm PR#44082", cells=WINDOW)
def windows_are_looked_up_a_block_early(patch: Patch) -> None:
    """A window's lookup starts one block before the end of what may be hit, where few blocks are kept."""

    @around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit")
    def found(original: Any, **kwargs: Any) -> Any:
        block = kwargs["kv_cache_spec"].block_size
        early = original(**{**kwargs, "max_length": max(0, kwargs["max_length"] - block)})
        if early[1] != original(**kwargs)[1]:
            acted()
        return early


@fault("GROUP-1", stands_for="vllm PR#57605", cells=WINDOW)
def windows_free_a_block_too_early(patch: Patch) -> None:
    """A window frees a block that tokens still read."""

    @around(patch, groups_of("SlidingWindow"), "get_num_skipped_tokens")
    def skipped(original: Any, this: Any, computed: int) -> int:
        right = int(original(this, computed))
        if not right or not this.enable_caching:
            return right
        acted()
        return min(right + int(this.block_size), computed)


@fault(
    "PRESS-4",
    stands_for="vllm#46283",
    cells=("groups-window-tight",),
    rare="only every third time that a window advances",
)
def blocks_behind_a_window_leak(patch: Patch) -> None:
    """Every third time that a window advances, the blocks that leave it are never freed."""
    count = itertools.count(1)

    @before(patch, groups_of("SlidingWindow"), "_remove_blocks_in_range")
    def remove(this: Any, request_id: str, first: int, last: int) -> None:
        blocks = this.req_to_blocks.get(request_id, [])
        leaving = [i for i in range(first, min(last, len(blocks))) if not blocks[i].is_null]
        if this.enable_caching and leaving and next(count) % 3 == 0:
            acted()
            for i in leaving:
                blocks[i] = this._null_block


@fault("PRESS-2", "PRESS-1", stands_for="vllm#52520", cells=("groups-window-tight",))
def windows_free_nothing(patch: Patch) -> None:
    """Blocks that leave a window are kept until the request ends, so that fewer requests run concurrently."""

    @around(patch, groups_of("SlidingWindow"), "_remove_blocks_in_range")
    def remove(original: Any, this: Any, request_id: str, first: int, last: int) -> None:
        if not this.enable_caching:
            original(this, request_id, first, last)
        elif first < last and this.req_to_blocks.get(request_id):
            acted()


@fault("GROUP-1", stands_for="vllm#32802, vllm#51771", cells=("groups-five",))
def more_than_two_groups_never_hit(patch: Patch) -> None:
    """With more than two groups of blocks, no lookup finds anything."""

    @around(patch, coordinator("Hybrid"), "find_longest_cache_hit")
    def found(original: Any, this: Any, hashes: Any, longest: int) -> Any:
        blocks, length, rest = original(this, hashes, longest)
        if len(blocks) <= 2 or not length:
            return blocks, length, rest
        acted()
        return tuple([] for _ in blocks), 0, rest


@fault(
    "GROUP-1",
    stands_for="vllm PR#29387",
    cells=("groups-state",),
    rare="only for two prompts with the same prefix in one step",
)
def states_are_hit_in_the_step_that_makes_them(patch: Patch) -> None:
    """A request starts from a state that another request of the same step has not computed yet."""

    @before(patch, groups_of("Mamba"), "get_num_blocks_to_allocate")
    def needed(this: Any, _name: str, _tokens: int, computed: Any, *_: Any, **__: Any) -> None:
        fresh = computed[-1].block_hash if computed else None
        if fresh in this.cached_blocks_this_step:
            acted()
            this.cached_blocks_this_step.discard(fresh)


@fault("GROUP-1", stands_for="vllm PR#55601", cells=("groups-state",))
def a_state_counts_as_that_of_the_next_boundary(patch: Patch) -> None:
    """Where the other layers have a longer hit, a state is used as the state of one block later."""

    @around(patch, groups_of("Mamba"), "find_longest_cache_hit")
    def found(original: Any, **kwargs: Any) -> Any:
        groups, length = original(**kwargs)
        block = kwargs["kv_cache_spec"].block_size
        if not 0 < length <= kwargs["max_length"] - block or kwargs["alignment_tokens"] != block:
            return groups, length
        acted()
        for blocks in groups:
            blocks.insert(0, kwargs["block_pool"].null_block)
        return groups, length + block


@fault("GROUP-1", stands_for="vllm PR#55601", cells=("groups-state-blocks",))
def parts_of_blocks_are_not_copied(patch: Patch) -> None:
    """A request that hits a part of a block gets a new block, but the part is not copied into it."""

    @around(patch, manager(), "take_kv_cache_block_copies")
    def copies(original: Any, this: Any) -> Any:
        planned, kept = original(this)
        if planned:
            acted()
        return [], kept


@fault("GROUP-1", stands_for="vllm#46453", cells=WINDOW)
def groups_share_their_blocks(patch: Patch) -> None:
    """A lookup uses the hash without the group, so that one group gets another group's blocks."""

    @around(patch, module("v1.core.block_pool"), "make_block_hash_with_group_id")
    def key(original: Any, hashed: Any, group: int) -> Any:
        if group:
            acted()
        return original(hashed, 0)


@fault(
    "GROUP-1",
    stands_for="field report of 0 hits with five groups, related to vllm#32802",
    cells=("groups-five",),
    rare="only for a prompt that is sent again after another one with the same prefix",
)
def a_hit_evicts_the_shared_prefix(patch: Patch) -> None:
    """When a request that hit a part of its prompt ends, the first block of the hit is removed from the index."""
    hits: dict[tuple[int, str], Any] = {}

    @after_lookup(patch)
    def found(this: Any, request: Any, blocks: Any, count: int) -> None:
        if 0 < count < request.num_tokens - 2 * this.block_pool.hash_block_size:
            hits[id(this), request.request_id] = blocks.blocks

    @after(patch, manager(), "free")
    def free(_result: Any, this: Any, request: Any) -> None:
        groups = hits.pop((id(this), request.request_id), ())
        first = {blocks[0].block_id for blocks in groups if len(blocks) and not blocks[0].is_null}
        if this.enable_caching and first:
            acted()
            this.evict_blocks(first)


@fault("GROUP-1", stands_for="kvcached#446", cells=WINDOW, rare="only from the third hit of a window on")
def a_window_serves_twice(patch: Patch) -> None:
    """The last block of a window is missing when its prompt is hit for the third time."""
    count: Counter[tuple[int, bytes]] = Counter()

    @around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit")
    def found(original: Any, **kwargs: Any) -> Any:
        groups, length = original(**kwargs)
        pool = kwargs["block_pool"]
        last = groups[0][-1] if groups[0] else None
        if last is not None and last.block_hash is not None:
            count[id(pool), bytes(last.block_hash)] += 1
            if count[id(pool), bytes(last.block_hash)] >= 3:
                acted()
                for blocks in groups:
                    blocks[-1] = pool.null_block
        return groups, length


@fault("GROUP-1", stands_for="vllm#45238", cells=("groups-window",))
def blocks_where_prompts_part_are_not_kept(patch: Patch) -> None:
    """Where a prompt parts from earlier ones, a window keeps no blocks, so that no other prompt hits the prefix."""

    @before(patch, groups_of("SlidingWindow"), "cache_blocks")
    def cache(_this: Any, request: Any, *_: Any, **__: Any) -> None:
        if request.shared_prefix_boundary:
            acted()
            request.shared_prefix_boundary = 0


@fault("CHAT-1", stands_for="vllm PR#52216", cells=("sliding-window-retained",))
def multiples_of_the_interval_are_not_kept(patch: Patch) -> None:
    """A window keeps blocks for replays and junctions, but not for the positions of the retention interval."""

    @around(patch, groups_of("SlidingWindow"), "reachable_block_mask")
    def mask(original: Any, _this: Any, **kwargs: Any) -> Any:
        sparse = original(**{**kwargs, "retention_interval": 0})
        if kwargs["retention_interval"] and sparse != original(**kwargs):
            acted()
        return sparse


@fault("GROUP-3", stands_for="vllm#42948, vllm PR#43447", cells=("groups-five-0-fitting",))
def blocks_behind_a_window_are_evicted_last(patch: Patch) -> None:
    """Blocks that a window leaves, and that are kept for no position, are evicted after those that are kept."""

    @around(patch, pool(), "free_blocks")
    def free(original: Any, this: Any, ordered_blocks: Any) -> None:
        blocks = list(ordered_blocks)
        original(this, blocks)
        late = [block for block in blocks if this.enable_caching and block.ref_cnt == 0 and block.block_hash is None]
        late = [block for block in late if not block.is_null and block.prev_free_block is not None]
        for block in late:
            this.free_block_queue.remove(block)
        if late:
            acted()
            this.free_block_queue.append_n(late)
