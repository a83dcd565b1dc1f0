"""The controls that change the engine instead of the workload: each is one cell of its own. Pure."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec

from adapters.base import EngineShape
from harness.cell import CHUNK_OF_ONE, CHUNK_TOKENS, Cell
from harness.engines.kinds import KINDS
from harness.variant import CHUNKS, POOL, TIER, Variant

HASH, DRAFTS, ASYNC, GRAPHS = "this hash algorithm", "speculative decoding", "async scheduling", "compiled graphs"
POOL_FLAG, HASH_FLAG, DRAFTS_FLAG = "--num-gpu-blocks-override", "--prefix-caching-hash-algo", "--speculative-config"
ROOMY_BLOCKS = 2048
OTHER_HASH = {"sha256_cbor": "sha256"}  # by what is in use; vLLM's own default is sha256
ANY_OTHER_HASH = "sha256_cbor"


def in_the_engine(cell: Cell, shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[Variant]:
    """The variants of a cell that differ from it. `arguments`: the user's, which come behind the cell's own."""
    kind = KINDS.get(cell.engine)
    return of_vllm(cell, shape, arguments) if kind is None else kind.variants(cell, arguments)


def of_vllm(cell: Cell, shape: EngineShape, arguments: tuple[str, ...]) -> Iterator[Variant]:
    """Those of vLLM, by its flags."""
    given = (*cell.arguments, *arguments)

    def variant(name: str, removes: str, *more: str, **changes: object) -> Variant:
        changed = msgspec.structs.replace(cell, arguments=(*cell.arguments, *more), **changes)
        return Variant(name=name, removes=removes, cell=changed)

    if cell.tier is not None:
        yield variant("no second tier", TIER, tier=None)
    if POOL_FLAG in given:
        yield variant(f"a pool of {ROOMY_BLOCKS} blocks", POOL, POOL_FLAG, str(ROOMY_BLOCKS))
    if CHUNK_TOKENS in given or CHUNK_OF_ONE in given:
        longest = str(shape.max_model_tokens)
        yield variant("prefill in one piece", CHUNKS, CHUNK_OF_ONE, "0", CHUNK_TOKENS, longest)
    if DRAFTS_FLAG in given:
        yield msgspec.structs.replace(
            variant("no speculative decoding", DRAFTS),
            cell=msgspec.structs.replace(cell, arguments=without(cell.arguments, DRAFTS_FLAG)),
        )
    if "--async-scheduling" in given:
        yield variant("async scheduling off", ASYNC, "--no-async-scheduling")
    if "--no-enforce-eager" in given:
        yield variant("eager", GRAPHS, "--enforce-eager")
    used = given[given.index(HASH_FLAG) + 1] if HASH_FLAG in given[:-1] else ""
    yield variant("another hash algorithm", HASH, HASH_FLAG, OTHER_HASH.get(used, ANY_OTHER_HASH))


def without(arguments: tuple[str, ...], flag: str) -> tuple[str, ...]:
    """The arguments without a flag and its value."""
    if flag not in arguments:
        return arguments
    at = arguments.index(flag)
    return arguments[:at] + arguments[at + 2 :]
