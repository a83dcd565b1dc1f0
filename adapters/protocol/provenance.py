"""Block provenance: which request wrote the KV that another request read. Engines that keep digests report it."""

from __future__ import annotations

import msgspec

NEVER_WRITTEN = 0xA5A5A5A5A5A5A5A5  # the initial content of a slot
ZEROED = 0
NO_BLOCK = 0  # vLLM's null block: the request has no block for these positions


class Writer(msgspec.Struct, frozen=True, kw_only=True):
    """The writer of a slot. `request`: the engine's name of the request. `position`: the token's position in it.

    `adapter`: the adapter's served name at that time. `content`: its content at that time. None: the base model.
    `version`: the version of the weights.
    """

    request: str
    position: int
    adapter: str | None
    content: str | None
    version: int = 0


class WrongRead(msgspec.Struct, frozen=True, kw_only=True):
    """The first slots of a request's context with wrong content: the positions `first` to `last` in one block.

    `column`: the column in the request's block table. `block`: the physical block. `found`: the digest at `first`.
    `writer`: None if the writer of that digest is unknown.
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
