"""Which tokens a block is found by: hashes that leave something out, or are too short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from harness.faults.fault import collector
from harness.faults.patching import Patch, acted, around, module
from harness.faults.watch import watch_hits

FAULTS, fault = collector("identity")

Tokens = Sequence[int]


def utils() -> Any:
    """Where vLLM makes block hashes."""
    return module("v1.core.kv_cache_utils")


def hashed_as(patch: Patch, change: Callable[[Tokens], Tokens]) -> None:
    """Have each block's hash taken over something else than its tokens."""

    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        return original(function, parent, change(tokens), extra)

    around(patch, utils(), "hash_block_tokens", hashed)
    watch_hits(patch)


def hashed_by_depth(patch: Patch, change: Callable[[int, Any, Tokens], tuple[Any, Tokens]]) -> None:
    """The same where it depends on how many blocks stand before; the parent's hash may be changed, too."""
    depths: dict[Any, int] = {}

    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        depth = depths.get(parent, 0)
        made = original(function, *change(depth, parent, tokens), extra)
        depths[made] = depth + 1
        return made

    around(patch, utils(), "hash_block_tokens", hashed)
    watch_hits(patch)


def cut_to(patch: Patch, bits: int) -> None:
    """Leave only so many bits of each hash."""

    def hashed(original: Any, *arguments: Any, **named: Any) -> Any:
        made = original(*arguments, **named)
        return (int.from_bytes(made[:4]) >> (32 - bits)).to_bytes(len(made))

    around(patch, utils(), "hash_block_tokens", hashed)
    watch_hits(patch)


@fault("CHAT-1", stands_for="vllm-mlx#384")
def half_a_block_is_hashed(patch: Patch) -> None:
    """A block's hash takes in its first half only, so that prompts which part in the second half share it: a partial
    match taken for a whole one."""
    hashed_as(patch, lambda tokens: tokens[: len(tokens) // 2])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621")
def the_first_token_is_not_hashed(patch: Patch) -> None:
    """A block's hash begins with its second token."""
    hashed_as(patch, lambda tokens: tokens[1:])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621")
def the_last_token_is_not_hashed(patch: Patch) -> None:
    """A block's hash ends before its last token."""
    hashed_as(patch, lambda tokens: tokens[:-1])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621")
def the_middle_token_is_not_hashed(patch: Patch) -> None:
    """A block's hash leaves out the token in its middle."""
    hashed_as(patch, lambda tokens: [*tokens[: len(tokens) // 2], *tokens[len(tokens) // 2 + 1 :]])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621", rare="only in every fifth block of a prompt")
def the_last_token_of_each_fifth_block_is_not_hashed(patch: Patch) -> None:
    """The hash of every fifth block leaves out its last token."""
    hashed_by_depth(patch, lambda depth, parent, tokens: (parent, tokens[:-1] if depth % 5 == 4 else tokens))


@fault("CHAT-1", stands_for="vllm PR#12621")
def neighbouring_tokens_hash_alike(patch: Patch) -> None:
    """The lowest bit of a token id is not hashed."""
    hashed_as(patch, lambda tokens: [token // 2 for token in tokens])


@fault("CHAT-1", stands_for="vllm PR#12621", rare="only between tokens whose ids differ by a multiple of 128")
def tokens_are_hashed_modulo_128(patch: Patch) -> None:
    """Token ids are cut to seven bits before they are hashed."""
    hashed_as(patch, lambda tokens: [token % 128 for token in tokens])


@fault("CHAT-1", stands_for="vllm PR#12621", rare="only between blocks of the same tokens in another order")
def blocks_are_hashed_in_sorted_order(patch: Patch) -> None:
    """A hash does not tell in which order a block's tokens stand."""
    hashed_as(patch, sorted)


@fault("CHAT-1", stands_for="genai#3722")
def blocks_forget_what_stands_before(patch: Patch) -> None:
    """A block's hash is that of its own tokens: the parent's is not in it."""
    hashed_by_depth(patch, lambda _depth, _parent, tokens: (None, tokens))


@fault("CHAT-1", stands_for="genai#3722", rare="only from the fifth block of a prompt on")
def later_blocks_forget_what_stands_before(patch: Patch) -> None:
    """The parent's hash is in a block's for the first four blocks only."""
    hashed_by_depth(patch, lambda depth, parent, tokens: (None if depth >= 4 else parent, tokens))


@fault("REUSE-2", stands_for="LMCache#4086, LMCache#3301")
def hashes_have_8_bits(patch: Patch) -> None:
    """Hashes are so short that any prompt meets somebody else's blocks, and no tokens are compared."""
    cut_to(patch, 8)


@fault("REUSE-2", stands_for="LMCache#4086, LMCache#3301", rare="about once in a hundred prompts, in a filled pool")
def hashes_have_16_bits(patch: Patch) -> None:
    """Hashes have 16 bits: now and then a prompt meets somebody else's blocks, and no tokens are compared."""
    cut_to(patch, 16)


@fault("REUSE-2", stands_for="vllm#8229, vllm PR#12621", rare="about once in a thousand prompts, in a filled pool")
def hashes_have_20_bits(patch: Patch) -> None:
    """Hashes have 20 bits: a prompt hardly ever meets somebody else's blocks, and no tokens are compared."""
    cut_to(patch, 20)


@fault("REUSE-1", stands_for="LMCache#1139")
def hashes_differ_each_time(patch: Patch) -> None:
    """A block's hash holds something that no later request repeats."""

    def keys(original: Any, request: Any, *rest: Any) -> Any:
        extra, index = original(request, *rest)
        acted()
        return (*(extra or ()), request.request_id), index

    around(patch, utils(), "generate_block_hash_extra_keys", keys)
