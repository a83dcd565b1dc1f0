"""Block hashes that leave out some of a prompt's embedding rows, where they are, or whose they are."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from typing import Any

from coldproof.adapters.spec.fault import Patch, collector
from coldproof.adapters.vllm.faults.hit_watch import count_wrong_hits
from coldproof.adapters.vllm.faults.keys.block_hashes import utils
from coldproof.adapters.vllm.faults.patching import around

FAULTS, fault = collector("embedding rows")

CELLS = ("embeds",)


def change_hashed_rows(patch: Patch, change: Callable[[Any], Any]) -> None:
    """Compute each block's hash from `change(rows)` instead of its rows."""

    @around(patch, utils(), "_gen_prompt_embeds_extra_hash_keys")
    def keys(_original: Any, request: Any, start: int, end: int) -> list[tuple[str, bytes]]:
        if request.prompt_embeds is None:
            return []
        rows = change(request.prompt_embeds[start:end].float().contiguous())
        return [("prompt_embeds", hashlib.sha256(rows.numpy().tobytes()).digest())]

    count_wrong_hits(patch)


def change_extra_keys(patch: Patch, change: Callable[[Any], bool]) -> None:
    """Leave the extra keys out of a block's hash that `change(key)` rejects, for prompts with rows."""

    @around(patch, utils(), "generate_block_hash_extra_keys")
    def keys(original: Any, request: Any, *rest: Any) -> Any:
        extra, index = original(request, *rest)
        if request.prompt_embeds is None or extra is None:
            return extra, index
        return tuple(key for key in extra if change(key)) or None, index

    count_wrong_hits(patch)


@fault("EMBED-1", stands_for="lmdeploy#4933", cells=CELLS)
def rows_are_not_hashed(patch: Patch) -> None:
    """A block's hash covers the placeholder ids of its embedding rows, but not the rows."""
    change_hashed_rows(patch, lambda rows: rows[:0])


@fault("EMBED-1", stands_for="sglang PR#32404", cells=CELLS)
def half_of_each_row_is_hashed(patch: Patch) -> None:
    """A block's hash covers only the second half of the values of each embedding row."""
    change_hashed_rows(patch, lambda rows: rows[:, rows.shape[1] // 2 :].contiguous())


@fault("EMBED-1", stands_for="lmdeploy#4933", cells=CELLS)
def the_last_row_of_a_block_is_not_hashed(patch: Patch) -> None:
    """A block's hash covers all its embedding rows but the last one."""
    change_hashed_rows(patch, lambda rows: rows[:-1])


@fault("EMBED-1", stands_for="a digest that does not depend on the order", cells=CELLS)
def rows_are_hashed_as_their_sum(patch: Patch) -> None:
    """A block's hash covers the sum of its embedding rows, so that rows in another order have the same one."""
    change_hashed_rows(patch, lambda rows: rows.sum(0))


@fault("EMBED-1", stands_for="vllm#56655", cells=CELLS)
def the_mask_is_not_hashed(patch: Patch) -> None:
    """A block's hash covers all token ids and rows that a request carries, but not which of both the model gets."""
    carried: list[Any] = []

    @around(patch, utils(), "generate_block_hash_extra_keys")
    def keys(original: Any, request: Any, start: int, end: int, index: int) -> Any:
        mixed = request.prompt_is_token_ids is not None and end <= len(request.prompt_token_ids)
        carried[:] = [request.prompt_token_ids[start:end]] if mixed else []
        return original(request, start, end, index)

    @around(patch, utils(), "hash_block_tokens")
    def hashed(original: Any, function: Any, parent: Any, tokens: Any, extra: Any = None) -> Any:
        return original(function, parent, carried.pop() if carried else tokens, extra)

    count_wrong_hits(patch)


@fault("EMBED-1", stands_for="vllm PR#20981, vllm PR#47696", cells=CELLS)
def a_salt_is_dropped_from_rows(patch: Patch) -> None:
    """A prompt with embedding rows loses its salt, so that tenants share its blocks."""
    change_extra_keys(patch, lambda key: key[0] != "cache_salt")


@fault("EMBED-1", stands_for="vllm PR#47696", cells=CELLS)
def hashes_of_rows_lack_the_adapter(patch: Patch) -> None:
    """The blocks of a prompt with embedding rows are shared by all adapters and the base model."""
    change_extra_keys(patch, lambda key: key[0] != "lora")
