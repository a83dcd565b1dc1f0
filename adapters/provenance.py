"""Whose KV an engine read: what one that keeps digests can tell, as plain data."""

from __future__ import annotations

import msgspec

NEVER_WRITTEN = 0xA5A5A5A5A5A5A5A5  # what lies in a slot from the start
ZEROED = 0
NO_BLOCK = 0  # vLLM's null block: the request holds none for these positions


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """Who wrote a slot: the engine's name of the request, for which of its positions, under which adapter.

    `adapter`: the served name then; `content`: what its files held then. None: the base model. `version`: of the
    weights.
    """

    request: str
    position: int
    adapter: str | None
    content: str | None
    version: int = 0


class WrongRead(msgspec.Struct, frozen=True, kw_only=True):
    """The first slots of a request's context that did not hold what they should: a run of positions in one block.

    `column`: of the request's block table. `block`: the physical block. `found`: what lay at `first`; `writer` None:
    nobody is known to have written that.
    """

    request: str
    step: int
    layer: int
    group: int
    column: int
    block: int
    first: int
    last: int
    found: int
    writer: Writer | None = None
