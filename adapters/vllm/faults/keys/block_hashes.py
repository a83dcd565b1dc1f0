"""Block hashes that leave tokens out or are too short."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import module
from coldproof.adapters.vllm.faults.hit_watch import count_wrong_hits
from coldproof.adapters.vllm.faults.patching import acted, around

FAULTS, fault = collector("identity")

Tokens = Sequence[int]


def utils() -> Any:
    """Return the module in which vLLM computes block hashes."""
    return module("v1.core.kv_cache_utils")


def change_hash_inputs(patch: Patch, change: Callable[[int, Any, Tokens], tuple[Any, Tokens]]) -> None:
    """Compute each block's hash from `change(number of blocks before it, parent hash, tokens)`."""
    depths: dict[Any, int] = {}

    @around(patch, utils(), "hash_block_tokens")
    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        depth = depths.get(parent, 0)
        made = original(function, *change(depth, parent, tokens), extra)
        depths[made] = depth + 1
        return made

    count_wrong_hits(patch)


def change_hashed_tokens(patch: Patch, change: Callable[[Tokens], Tokens]) -> None:
    """Compute each block's hash from `change(tokens)` instead of its tokens."""
    change_hash_inputs(patch, lambda _depth, parent, tokens: (parent, change(tokens)))


def truncate_hashes(patch: Patch, bits: int) -> None:
    """Keep only the first `bits` bits of each hash."""

    @around(patch, utils(), "hash_block_tokens")
    def hashed(original: Any, *args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        return (int.from_bytes(made[:4]) >> (32 - bits)).to_bytes(len(made))

    count_wrong_hits(patch)


@fault("CHAT-1", stands_for="vllm-mlx#384")
def half_a_block_is_hashed(patch: Patch) -> None:
    """A block's hash covers only its first half. So prompts that differ in the second half share it: a partial match is
    used as a whole one.
    """
    change_hashed_tokens(patch, lambda tokens: tokens[: len(tokens) // 2])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621")
def the_first_token_is_not_hashed(patch: Patch) -> None:
    """A block's hash does not cover its first token."""
    change_hashed_tokens(patch, lambda tokens: tokens[1:])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621")
def the_last_token_is_not_hashed(patch: Patch) -> None:
    """A block's hash does not cover its last token."""
    change_hashed_tokens(patch, lambda tokens: tokens[:-1])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621")
def the_middle_token_is_not_hashed(patch: Patch) -> None:
    """A block's hash does not cover the token in its middle."""
    change_hashed_tokens(patch, lambda tokens: [*tokens[: len(tokens) // 2], *tokens[len(tokens) // 2 + 1 :]])


@fault("CHAT-1", "SALT-1", stands_for="vllm PR#12621", rare="only in every fifth block of a prompt")
def the_last_token_of_each_fifth_block_is_not_hashed(patch: Patch) -> None:
    """The hash of every fifth block does not cover its last token."""
    change_hash_inputs(patch, lambda depth, parent, tokens: (parent, tokens[:-1] if depth % 5 == 4 else tokens))


@fault("CHAT-1", stands_for="vllm PR#12621")
def neighbouring_tokens_hash_alike(patch: Patch) -> None:
    """The lowest bit of each token id is not hashed."""
    change_hashed_tokens(patch, lambda tokens: [token // 2 for token in tokens])


@fault("CHAT-1", stands_for="vllm PR#12621", rare="only between tokens whose ids differ by a multiple of 128")
def tokens_are_hashed_modulo_128(patch: Patch) -> None:
    """Token ids are cut to seven bits before they are hashed."""
    change_hashed_tokens(patch, lambda tokens: [token % 128 for token in tokens])


@fault("CHAT-1", stands_for="vllm PR#12621", rare="only between blocks of the same tokens in another order")
def blocks_are_hashed_in_sorted_order(patch: Patch) -> None:
    """A block's hash does not depend on the order of its tokens."""
    change_hashed_tokens(patch, sorted)


@fault("CHAT-1", stands_for="genai#3722")
def hashes_lack_the_parent(patch: Patch) -> None:
    """A block's hash covers only its own tokens, not its parent's hash."""
    change_hash_inputs(patch, lambda _depth, _parent, tokens: (None, tokens))


@fault("CHAT-1", stands_for="genai#3722", rare="only from the fifth block of a prompt on")
def later_hashes_lack_the_parent(patch: Patch) -> None:
    """From the fifth block of a prompt on, a block's hash does not cover its parent's hash."""
    change_hash_inputs(patch, lambda depth, parent, tokens: (None if depth >= 4 else parent, tokens))


@fault("REUSE-2", stands_for="LMCache#4086, LMCache#3301")
def hashes_have_8_bits(patch: Patch) -> None:
    """Hashes have 8 bits. Any prompt collides with other prompts' blocks, and tokens are not compared."""
    truncate_hashes(patch, 8)


@fault("REUSE-2", stands_for="LMCache#4086, LMCache#3301", rare="about once in a hundred prompts, in a full pool")
def hashes_have_16_bits(patch: Patch) -> None:
    """Hashes have 16 bits. A prompt sometimes collides with other prompts' blocks, and tokens are not compared."""
    truncate_hashes(patch, 16)


@fault("REUSE-2", stands_for="vllm#8229, vllm PR#12621", rare="about once in a thousand prompts, in a full pool")
def hashes_have_20_bits(patch: Patch) -> None:
    """Hashes have 20 bits. A prompt rarely collides with other prompts' blocks, and tokens are not compared."""
    truncate_hashes(patch, 20)


@fault("REUSE-1", stands_for="LMCache#1139")
def hashes_differ_each_time(patch: Patch) -> None:
    """A block's hash contains the request's id, so that no later request finds it."""

    @around(patch, utils(), "generate_block_hash_extra_keys")
    def keys(original: Any, request: Any, *rest: Any) -> Any:
        extra, index = original(request, *rest)
        acted()
        return (*(extra or ()), request.request_id), index
