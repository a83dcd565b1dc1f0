"""Cache resets."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, pool

FAULTS, fault = collector("control")


def forget_hashes(held: Any) -> None:
    """Have a pool forget under which hash any block is found, whoever uses it."""
    held.cached_block_hash_to_block = type(held.cached_block_hash_to_block)()
    held.cached_block_hashes_by_block.clear()
    for block in held.blocks:
        block.reset_hash()


def reset_but_keep(patch: Patch, choose: Callable[[list[Any]], list[Any]]) -> None:
    """Have a reset leave those (hash, block) in the index that `choose` picks out of all, oldest first."""

    def reset(original: Any, held: Any) -> bool:
        index = held.cached_block_hash_to_block
        kept = choose([(key, index.get_one_block(key)) for key in index._cache])
        kept = [(key, block, block.block_hash_num_tokens) for key, block in kept]
        done = bool(original(held))
        if done and kept:
            for key, block, tokens in kept:
                held._insert_block_hash(key, block, num_tokens=tokens)
            acted()
        return done

    around(patch, pool(), "reset_prefix_cache", reset)


@fault("CTRL-1", stands_for="omni#6739")
def a_reset_only_says_so(patch: Patch) -> None:
    """A cache reset answers success and does nothing."""

    def reset(_original: Any, held: Any) -> bool:
        if len(held.cached_block_hash_to_block):
            acted()
        return True

    around(patch, pool(), "reset_prefix_cache", reset)


@fault("CTRL-1", stands_for="vllm PR#12284")
def a_reset_under_load_only_says_so(patch: Patch) -> None:
    """One that comes while requests hold blocks answers success and does nothing."""

    def reset(original: Any, held: Any) -> bool:
        if not original(held):
            acted()
        return True

    around(patch, pool(), "reset_prefix_cache", reset)


@fault("CTRL-1", stands_for="sglang#26792")
def a_reset_drops_half_of_the_index(patch: Patch) -> None:
    """A reset forgets every second block only, as one who deletes while he iterates does, and answers success."""
    reset_but_keep(patch, lambda entries: entries[::2])


@fault("CTRL-1", stands_for="sglang#26792", rare="when a prompt is asked in part after a reset, and then whole")
def a_reset_leaves_the_last_block(patch: Patch) -> None:
    """A reset forgets all blocks but the one that was published last; it is found again once somebody has computed the
    blocks before it, and not itself."""
    reset_but_keep(patch, lambda entries: entries[-1:])


@fault(
    "CTRL-1",
    stands_for="vllm#44939",
    cells=("groups-window",),
    workers=("fingerprint",),
    rare="when what lies in one group only is hit, once the others have been computed again",
)
def a_reset_forgets_a_group(patch: Patch) -> None:
    """A reset leaves the blocks of the last of several groups in the index, and answers success."""
    reset_but_keep(patch, lambda entries: [entry for entry in entries if entry[0][-4:] == entries[-1][0][-4:]])


@fault(
    "CTRL-1", stands_for="vllm#9744", rare="when a request is running at a reset and somebody asks for what it wrote"
)
def a_reset_under_load_lets_the_running_go_on_publishing(patch: Patch) -> None:
    """A reset while requests run empties the index and answers success. What the running ones compute from then on is
    published under hashes that still hold, on top of KV from before the reset."""

    def reset(original: Any, held: Any) -> bool:
        if not original(held):
            forget_hashes(held)
            acted()
        return True

    around(patch, pool(), "reset_prefix_cache", reset)


@fault("CTRL-1", stands_for="vllm#41190, vllm PR#28827")
def a_reset_under_load_frees_what_is_in_use(patch: Patch) -> None:
    """A reset while requests run makes all blocks free, theirs too, and answers success."""

    def reset(original: Any, held: Any) -> bool:
        if not original(held):
            forget_hashes(held)
            for block in held.blocks:
                if block.ref_cnt and not block.is_null:
                    block.ref_cnt = 0
                    held.free_block_queue.append(block)
            acted()
        return True

    around(patch, pool(), "reset_prefix_cache", reset)
