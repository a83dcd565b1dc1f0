"""Several groups of KV-cache blocks."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, manager, module

FAULTS, fault = collector("groups")

WINDOW = ("groups-window",)
Lookup = Callable[..., Any]


def groups_of(kind: str) -> Any:
    """The class that keeps the blocks of one kind of layers."""
    return getattr(module("v1.core.single_type_kv_cache_manager"), f"{kind}Manager")


def narrowed(original: Lookup, named: dict[str, Any], divisor: int) -> Any:
    """A window's lookup that is content with a part of the window's blocks."""
    spec = named["kv_cache_spec"]
    part = dataclasses.replace(spec, sliding_window=spec.sliding_window // divisor)
    found = original(**{**named, "kv_cache_spec": part})
    if numbers(found) != numbers(original(**named)):
        acted()
    return found


def numbers(found: Any) -> list[list[int]]:
    """The blocks of a lookup, group by group."""
    return [[block.block_id for block in blocks] for blocks in found[0]]


@fault("GROUP-1", stands_for="TRT PR#10875", cells=WINDOW)
def half_a_window_is_kept(patch: Patch) -> None:
    """A hit needs only half the blocks that a window reads: the rest is whatever lies there."""
    around(
        patch,
        groups_of("SlidingWindow"),
        "find_longest_cache_hit",
        lambda original, **named: narrowed(original, named, 2),
    )


@fault("GROUP-1", stands_for="TRT PR#10875", cells=WINDOW, rare="prompts of more than four windows")
def half_a_window_is_kept_of_long_prompts(patch: Patch) -> None:
    """A hit needs only half the blocks that a window reads, where a prompt is longer than four windows."""

    def found(original: Any, **named: Any) -> Any:
        long = named["max_length"] > 4 * named["kv_cache_spec"].sliding_window
        return narrowed(original, named, 2) if long else original(**named)

    around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit", found)


@fault("GROUP-1", stands_for="TRT PR#10875", cells=WINDOW, rare="prompts that end a token behind a block")
def half_a_window_is_kept_at_the_ends_of_blocks(patch: Patch) -> None:
    """A hit needs only half the blocks that a window reads, where all of a prompt but its last token are whole
    blocks."""

    def found(original: Any, **named: Any) -> Any:
        even = named["max_length"] % named["kv_cache_spec"].block_size == 0
        return narrowed(original, named, 2) if even else original(**named)

    around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit", found)


@fault("GROUP-1", stands_for="TRT PR#10875", cells=("groups-two-windows",))
def the_smaller_window_decides(patch: Patch) -> None:
    """Where layers have windows of two lengths, a hit keeps as much of each as the smaller one reads."""
    seen: set[int] = set()

    def found(original: Any, **named: Any) -> Any:
        spec = named["kv_cache_spec"]
        seen.add(spec.sliding_window)
        return narrowed(original, named, spec.sliding_window // min(seen))

    around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit", found)


@fault("GROUP-1", stands_for="vllm#46453, TRT PR#10183", cells=WINDOW)
def the_longest_group_decides(patch: Patch) -> None:
    """A hit is as long as the longest of the groups' hits, not the shortest."""

    def found(original: Any, held: Any, hashes: Any, longest: int) -> Any:
        blocks, length, rest = original(held, hashes, longest)
        each, lengths = held.find_longest_cache_hit_per_group(hashes, longest)
        if max(lengths) <= length:
            return blocks, length, rest
        acted()
        return each, max(lengths), 0

    around(patch, module("v1.core.kv_cache_coordinator").HybridKVCacheCoordinator, "find_longest_cache_hit", found)


@fault("GROUP-1", stands_for="vllm PR#44082", cells=WINDOW)
def windows_are_looked_up_a_block_early(patch: Patch) -> None:
    """A window's lookup begins a block before the end of what may be hit, where few blocks are kept."""

    def found(original: Any, **named: Any) -> Any:
        block = named["kv_cache_spec"].block_size
        early = original(**{**named, "max_length": max(0, named["max_length"] - block)})
        if early[1] != original(**named)[1]:
            acted()
        return early

    around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit", found)


@fault("GROUP-1", stands_for="vllm PR#57605", cells=WINDOW)
def windows_let_go_of_a_block_too_early(patch: Patch) -> None:
    """A block leaves the window while tokens still read it."""

    def skipped(original: Any, held: Any, computed: int) -> int:
        right = int(original(held, computed))
        if not right or not held.enable_caching:
            return right
        acted()
        return min(right + int(held.block_size), computed)

    around(patch, groups_of("SlidingWindow"), "get_num_skipped_tokens", skipped)


@fault("PRESS-4", stands_for="vllm#46283", cells=("groups-window-tight",), rare="every third time that a window moves")
def blocks_behind_a_window_leak(patch: Patch) -> None:
    """What a window leaves behind is not given back, every third time."""
    count = itertools.count(1)

    def remove(original: Any, held: Any, request_id: str, first: int, last: int) -> None:
        blocks = held.req_to_blocks.get(request_id, [])
        behind = [i for i in range(first, min(last, len(blocks))) if not blocks[i].is_null]
        if held.enable_caching and behind and next(count) % 3 == 0:
            acted()
            for i in behind:
                blocks[i] = held._null_block
        original(held, request_id, first, last)

    around(patch, groups_of("SlidingWindow"), "_remove_blocks_in_range", remove)


@fault("PRESS-2", "PRESS-1", stands_for="vllm#52520", cells=("groups-window-tight",))
def windows_hold_on_to_everything(patch: Patch) -> None:
    """What a window leaves behind is kept until its request ends: fewer requests fit side by side."""

    def remove(original: Any, held: Any, request_id: str, first: int, last: int) -> None:
        if not held.enable_caching:
            original(held, request_id, first, last)
        elif first < last and held.req_to_blocks.get(request_id):
            acted()

    around(patch, groups_of("SlidingWindow"), "_remove_blocks_in_range", remove)


@fault("GROUP-1", stands_for="vllm#32802, vllm#51771", cells=("groups-five",))
def more_than_two_groups_never_hit(patch: Patch) -> None:
    """Where blocks are in more than two groups, nothing is ever hit."""

    def found(original: Any, held: Any, hashes: Any, longest: int) -> Any:
        blocks, length, rest = original(held, hashes, longest)
        if len(blocks) <= 2 or not length:
            return blocks, length, rest
        acted()
        return tuple([] for _ in blocks), 0, rest

    around(patch, module("v1.core.kv_cache_coordinator").HybridKVCacheCoordinator, "find_longest_cache_hit", found)


@fault("GROUP-1", stands_for="vllm PR#29387", cells=("groups-state",), rare="two prompts with one prefix in one step")
def states_are_hit_in_the_step_that_makes_them(patch: Patch) -> None:
    """A request begins with a state that another one of the same step has not yet computed."""

    def needed(original: Any, held: Any, name: str, tokens: int, computed: Any, *rest: Any, **named: Any) -> Any:
        fresh = computed[-1].block_hash if computed else None
        if fresh in held.cached_blocks_this_step:
            acted()
            held.cached_blocks_this_step.discard(fresh)
        return original(held, name, tokens, computed, *rest, **named)

    around(patch, groups_of("Mamba"), "get_num_blocks_to_allocate", needed)


@fault("GROUP-1", stands_for="vllm PR#55601", cells=("groups-state",))
def states_are_taken_for_those_of_the_next_boundary(patch: Patch) -> None:
    """Where the other layers hit further, a state counts as that of one block later."""

    def found(original: Any, **named: Any) -> Any:
        groups, length = original(**named)
        block = named["kv_cache_spec"].block_size
        if not 0 < length <= named["max_length"] - block or named["alignment_tokens"] != block:
            return groups, length
        acted()
        for blocks in groups:
            blocks.insert(0, named["block_pool"].null_block)
        return groups, length + block

    around(patch, groups_of("Mamba"), "find_longest_cache_hit", found)


@fault("GROUP-1", stands_for="vllm PR#55601", cells=("groups-state-blocks",))
def parts_of_blocks_are_not_copied(patch: Patch) -> None:
    """Who hits a part of a block is given a block of their own, and the part is not copied into it."""

    def copies(original: Any, held: Any) -> Any:
        planned, kept = original(held)
        if planned:
            acted()
        return [], kept

    around(patch, manager(), "take_kv_cache_block_copies", copies)


@fault("GROUP-1", stands_for="vllm#46453", cells=WINDOW)
def groups_share_their_blocks(patch: Patch) -> None:
    """A block is found by its hash alone: one group's blocks are given to another."""

    def key(original: Any, hashed: Any, group: int) -> Any:
        if group:
            acted()
        return original(hashed, 0)

    around(patch, module("v1.core.block_pool"), "make_block_hash_with_group_id", key)


@fault(
    "GROUP-1",
    stands_for="field report of 0 hits with five groups, a kin of vllm#32802",
    cells=("groups-five",),
    rare="a prompt that comes back after another one with its prelude",
)
def whoever_shares_a_prelude_takes_it_away(patch: Patch) -> None:
    """When a request ends that hit a part of its prompt, the first block of what it hit is found by nobody any more."""
    hits: dict[tuple[int, str], Any] = {}

    def found(original: Any, held: Any, request: Any) -> Any:
        blocks, count, boundary = original(held, request)
        if 0 < count < request.num_tokens - 2 * held.block_pool.hash_block_size:
            hits[id(held), request.request_id] = blocks.blocks
        return blocks, count, boundary

    def free(original: Any, held: Any, request: Any) -> None:
        original(held, request)
        groups = hits.pop((id(held), request.request_id), ())
        first = {blocks[0].block_id for blocks in groups if len(blocks) and not blocks[0].is_null}
        if held.enable_caching and first:
            acted()
            held.evict_blocks(first)

    around(patch, manager(), "get_computed_blocks", found)
    around(patch, manager(), "free", free)


@fault("GROUP-1", stands_for="kvcached#446", cells=WINDOW, rare="the third hit of one window, and later ones")
def a_window_serves_twice(patch: Patch) -> None:
    """The last block of a window is missing when its prompt is hit for the third time."""
    count: Counter[tuple[int, bytes]] = Counter()

    def found(original: Any, **named: Any) -> Any:
        groups, length = original(**named)
        pool = named["block_pool"]
        last = groups[0][-1] if groups[0] else None
        if last is not None and last.block_hash is not None:
            count[id(pool), bytes(last.block_hash)] += 1
            if count[id(pool), bytes(last.block_hash)] >= 3:
                acted()
                for blocks in groups:
                    blocks[-1] = pool.null_block
        return groups, length

    around(patch, groups_of("SlidingWindow"), "find_longest_cache_hit", found)
