"""Injectable faults of Transformers' prefix cache. Engines run in this process, so that a fault ends with its context.

Only code that runs with block sharing is changed: cold answers come from an engine without it, in the same process.
"""

from __future__ import annotations

import contextlib
import functools
import importlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from coldproof.adapters.spec.fault import Patch, collector, listed
from coldproof.adapters.transformers.releases import CACHE, eviction_of, hash_of, registration_of

FAULTS, fault = collector("Keys, matches and evictions of Transformers' block cache.")
ACTED = "acted"
_marks: list[Path] = []

Key = tuple[Any, Sequence[int]]


def acted() -> None:
    """Record that the fault has just changed something."""
    for folder in _marks:
        (folder / ACTED).touch()


def change_key(patch: Patch, change: Callable[[Any, Sequence[int]], Key]) -> None:
    """Compute the hashes of blocks from another parent or other tokens than the engine does."""
    owner, name, first = hash_of()
    original = getattr(owner, name)

    @functools.wraps(original)
    def compute(*words: Any, **named: Any) -> Any:
        parent, tokens = words[first : first + 2]
        instead = change(parent, tokens)
        if instead != (parent, tokens):
            acted()
        return original(*words[:first], *instead, *words[first + 2 :], **named)

    patch.setattr(owner, name, compute)


@fault("CHAT-1", "CHAT-2", "REUSE-2", stands_for="near-equal prompts that share a hash")
def half_a_block_is_hashed(patch: Patch) -> None:
    """Only the first half of a block's tokens is in its hash."""
    change_key(patch, lambda parent, tokens: (parent, list(tokens[: len(tokens) // 2])))


@fault("CHAT-1", "CHAT-2", "REUSE-2", stands_for="a key that leaves out the first token, for example the BOS token")
def the_first_token_is_not_hashed(patch: Patch) -> None:
    """The first token of a block is not in its hash."""
    change_key(patch, lambda parent, tokens: (parent, list(tokens[1:])))


@fault("CHAT-1", "CHAT-2", "REUSE-2", stands_for="a hash without its parent's", rare="equal blocks behind other tokens")
def hashes_lack_the_parent(patch: Patch) -> None:
    """The hash of a block does not contain that of the block before."""
    change_key(patch, lambda _parent, tokens: (None, tokens))


@fault("CHAT-1", "CHAT-2", "REUSE-2", stands_for="an off-by-one error of the prefix match")
def a_match_is_one_block_too_long(patch: Patch) -> None:
    """The block that follows the common prefix in an earlier request counts as matched."""
    cache = importlib.import_module(CACHE).PagedAttentionCache
    register = registration_of(cache)
    search, complete = cache.search_prefix_match, getattr(cache, register)

    def search_prefix_match(this: Any, request_id: str, prompt: list[int]) -> Any:
        following, page = vars(this).setdefault("_followers", {}), tokens_of_block(this)
        end = next((i for i in range(0, len(prompt), page) if tuple(prompt[: i + page]) not in following), 0)
        next_block = following.get(tuple(prompt[:end]))
        if not end or next_block is None or len(prompt) <= end + page:
            return search(this, request_id, prompt)
        acted()
        return search(this, request_id, [*prompt[:end], *next_block, *prompt[end + page :]])

    def mark(this: Any, state: Any, *words: Any, **named: Any) -> Any:
        following, page = vars(this).setdefault("_followers", {}), tokens_of_block(this)
        tokens = state.initial_tokens + state.generated_tokens
        for end in range(page, len(tokens), page):
            block = tokens[end : end + page]
            following[tuple(tokens[:end])] = block if len(block) == page else following.get(tuple(tokens[:end]))
        return complete(this, state, *words, **named)

    patch.setattr(cache, "search_prefix_match", search_prefix_match)
    patch.setattr(cache, register, mark)


@fault("PRESS-1", "PREEMPT-2", cells=("transformers-tight",), stands_for="blocks that are found after their eviction")
def evicted_blocks_stay_in_the_index(patch: Patch) -> None:
    """The hash of an evicted block still leads to it."""
    owner, name, index = eviction_of()
    evict = getattr(owner, name)

    def evict_blocks(this: Any, *words: Any, **named: Any) -> Any:
        before = dict(getattr(this, index))
        result = evict(this, *words, **named)
        gone = before.keys() - getattr(this, index).keys()
        if gone:
            acted()
        getattr(this, index).update({key: before[key] for key in gone})
        return result

    patch.setattr(owner, name, evict_blocks)


def tokens_of_block(cache: Any) -> int:
    """Return the tokens of a block of the only group."""
    if hasattr(cache, "cache_allocators"):
        return int(next(iter(cache.cache_allocators.values())).tokens_per_page)
    return int(cache.block_size)


def listing() -> str:
    """Return a text with one line for each fault."""
    return listed("Transformers: keys, matches and evictions of its block cache.", FAULTS)


@contextlib.contextmanager
def injected(name: str, folder: Path) -> Iterator[None]:
    """Inject a fault into every engine that lives in this context; a file in `folder` shows whether it acted."""
    folder.mkdir(parents=True, exist_ok=True)
    _marks.append(folder)
    try:
        with pytest.MonkeyPatch.context() as patch:
            FAULTS[name].plant(patch)
            yield
    finally:
        _marks.remove(folder)


def has_acted(folder: Path) -> bool:
    """Return whether the fault changed anything."""
    return (folder / ACTED).exists()
