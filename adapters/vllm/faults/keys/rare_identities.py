"""Keys that are wrong only for rare salts, adapters, places in a prompt, and requests that resume."""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.engine_parts import manager, scheduler
from coldproof.adapters.vllm.faults.hit_watch import count_wrong_hits
from coldproof.adapters.vllm.faults.keys.block_hashes import change_hash_inputs
from coldproof.adapters.vllm.faults.keys.lora_and_salt import (
    change_adapter_key,
    change_salt_key,
    change_tagged_keys,
    without,
)
from coldproof.adapters.vllm.faults.patching import TIGHT, acted, after, around, before, override, state_of

FAULTS, fault = collector("rare_identities")

COLUMN = 64  # characters of a salt that a table with a fixed width keeps
ADAPTER_NUMBERS = 16
SUPERBLOCK = 16  # blocks


@fault("SALT-1", stands_for="LMCache#4086, vllm#44701", rare="only for a salt that begins with another salt in use")
def a_salt_that_extends_another_shares_its_key(patch: Patch) -> None:
    """Salts are looked up by their beginning. A salt that begins with another salt in use gets that one's key."""
    known: dict[str, None] = {}

    def change(_request: Any, salt: str) -> str:
        known.setdefault(salt)
        return min((one for one in known if salt.startswith(one)), key=len)

    change_salt_key(patch, change)


@fault("SALT-1", stands_for="LMCache#4086", rare="only between salts that differ after the 64th character")
def long_salts_are_cut(patch: Patch) -> None:
    """The key contains only the first 64 characters of a salt."""
    change_salt_key(patch, lambda _request, salt: salt[:COLUMN])


@fault("LORA-2", "LORA-4", stands_for="vllm PR#3263", rare="only between adapters that are 16 loads apart")
def adapter_numbers_have_four_bits(patch: Patch) -> None:
    """A block's hash contains the last four bits of an adapter's number, and how often it was replaced in place."""
    contents: dict[tuple[str, int], list[str]] = {}

    def key(request: Any) -> list[tuple[str, ...]]:
        lora = request.lora_request
        paths = contents.setdefault((lora.lora_name, lora.lora_int_id), [])
        if paths[-1:] != [lora.lora_path]:
            paths.append(lora.lora_path)
        return [("lora", str(lora.lora_int_id % ADAPTER_NUMBERS), str(len(paths)))]

    change_adapter_key(patch, key)


@fault("SALT-1", "CHAT-2", stands_for="vllm PR#20981", rare="only for prompts shorter than a block")
def a_first_block_that_decode_fills_has_no_salt(patch: Patch) -> None:
    """The salt is in the key only if the prompt fills the first block. If decode fills it, its hash has no salt."""

    def changed(request: Any, _start: int, end: int, keys: tuple[Any, ...]) -> tuple[Any, ...]:
        return keys if end <= request.num_prompt_tokens else without("cache_salt", keys)

    change_tagged_keys(patch, changed)
    count_wrong_hits(patch)


@fault(
    "LORA-4",
    "SALT-1",
    stands_for="vllm PR#37152",
    rare="only for equal prompts with different adapters or salts that are admitted in one step",
)
def prompts_of_one_step_are_matched_by_tokens_alone(patch: Patch) -> None:
    """A request that is admitted in the step of another one with the same first tokens hits what that one hits, also
    under another adapter or salt.
    """

    @before(patch, scheduler(), "schedule")
    def schedule(this: Any, *_: Any, **__: Any) -> None:
        state_of(this.kv_cache_manager, "looked_up", list).clear()

    @around(patch, manager(), "get_computed_blocks")
    def found(original: Any, this: Any, request: Any) -> Any:
        right, others = original(this, request), state_of(this, "looked_up", list[Any])
        size = this.block_pool.hash_block_size
        shared = [(shared_blocks(one, request, size), one) for one in others]
        others.append(request)
        count, other = max(shared, key=lambda pair: pair[0], default=(0, request))
        if not count or not this.prefix_cache_lookup_enabled(request):
            return right
        with override(request, "block_hashes", other.block_hashes[:count]):
            wrong = original(this, request)
        if wrong[1] <= right[1] or other.block_hashes[:count] == request.block_hashes[:count]:
            return right
        acted()
        return wrong


def shared_blocks(one: Any, other: Any, size: int) -> int:
    """Return how many whole blocks of tokens two requests share from their start."""
    count = 0
    for a, b in zip(one.all_token_ids, other.all_token_ids, strict=False):
        if a != b:
            break
        count += 1
    return count // size


@fault(
    "CHAT-1",
    "SALT-1",
    stands_for="genai#3722, LMCache#4385",
    rare="only after a hit of exactly 16 blocks, of a prompt whose next block has the tokens of another prompt's 17th",
)
def every_sixteenth_hash_lacks_the_parent(patch: Patch) -> None:
    """Hashes are chained within 16 blocks. The hash of the 17th, 33rd, ... block does not cover its parent's hash."""
    change_hash_inputs(
        patch, lambda depth, parent, tokens: (None if depth and depth % SUPERBLOCK == 0 else parent, tokens)
    )


def rehash_preempted(patch: Patch, without_field: str) -> None:
    """Compute the hashes of a preempted request again as if it had no `without_field`."""

    @after(patch, scheduler(), "_preempt_request")
    def preempt(_result: Any, this: Any, request: Any, *_: Any, **__: Any) -> None:
        if this.kv_cache_manager.enable_caching and getattr(request, without_field) is not None:
            request.block_hashes.clear()
            with override(request, without_field, None):
                request.update_block_hashes()

    count_wrong_hits(patch)


@fault(
    "MIXED-1",
    "PREEMPT-2",
    stands_for="vllm PR#8240, vllm#49449",
    cells=TIGHT,
    rare="only for a request with an adapter that resumes, and a request of the base model with its tokens",
)
def resumed_requests_hash_as_the_base_model(patch: Patch) -> None:
    """The hashes of a preempted request are computed again without its adapter. It hits and publishes the base model's
    blocks.
    """
    rehash_preempted(patch, "lora_request")


@fault(
    "MIXED-1",
    "PREEMPT-2",
    stands_for="vllm PR#20981, vllm#49449",
    cells=TIGHT,
    rare="only for a request with a salt that resumes, and a request without a salt with its tokens",
)
def resumed_requests_hash_without_their_salt(patch: Patch) -> None:
    """The hashes of a preempted request are computed again without its salt. It hits and publishes common blocks."""
    rehash_preempted(patch, "cache_salt")
