"""Variants of vLLM cells for the diagnosis: each removes one engine feature."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from coldproof.adapters.protocol.shape import EngineShape
from coldproof.adapters.spec.cell import Cell
from coldproof.adapters.spec.variant import CHUNKS, POOL, TIER, EngineVariant
from coldproof.adapters.vllm.cells import CHUNK_OF_ONE, CHUNK_TOKENS, VllmCell

HASH, DRAFTS, ASYNC, GRAPHS = "this hash algorithm", "speculative decoding", "async scheduling", "compiled graphs"
POOL_FLAG, HASH_FLAG, DRAFTS_FLAG = "--num-gpu-blocks-override", "--prefix-caching-hash-algo", "--speculative-config"
ROOMY_BLOCKS = 2048
OTHER_HASH = {"sha256_cbor": "sha256"}  # the algorithm in use -> the one to use instead; vLLM's default is sha256
ANY_OTHER_HASH = "sha256_cbor"


def variants(cell: Cell, shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[EngineVariant]:
    """Yield the variants of a cell that differ from it. `arguments`: the user's, which follow the cell's."""
    all_arguments = (*cell.arguments, *arguments)

    def variant(name: str, removes: str, *more: str, **changes: object) -> EngineVariant:
        changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, *more), **changes)
        return EngineVariant(name=name, removes=removes, cell=changed)

    if isinstance(cell, VllmCell) and cell.tier is not None:
        yield variant("no second tier", TIER, tier=None)
    if POOL_FLAG in all_arguments:
        yield variant(f"a pool of {ROOMY_BLOCKS} blocks", POOL, POOL_FLAG, str(ROOMY_BLOCKS))
    if CHUNK_TOKENS in all_arguments or CHUNK_OF_ONE in all_arguments:
        longest = str(shape.max_model_tokens)
        yield variant("prefill in one piece", CHUNKS, CHUNK_OF_ONE, "0", CHUNK_TOKENS, longest)
    if DRAFTS_FLAG in all_arguments:
        yield msgspec.structs.replace(
            variant("no speculative decoding", DRAFTS),
            cell=msgspec.structs.replace(cell, arguments=without(cell.arguments, DRAFTS_FLAG)),
        )
    if "--async-scheduling" in all_arguments:
        yield variant("async scheduling off", ASYNC, "--no-async-scheduling")
    if "--no-enforce-eager" in all_arguments:
        yield variant("eager", GRAPHS, "--enforce-eager")
    used = all_arguments[all_arguments.index(HASH_FLAG) + 1] if HASH_FLAG in all_arguments[:-1] else ""
    yield variant("another hash algorithm", HASH, HASH_FLAG, OTHER_HASH.get(used, ANY_OTHER_HASH))


def without(arguments: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """Return the arguments without a flag and its value."""
    if flag not in arguments:
        return arguments
    at = arguments.index(flag)
    return arguments[:at] + arguments[at + 2 :]
