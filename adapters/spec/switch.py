"""A switch with which a server lets Coldproof test more of it. An engine's switches stand in its own folder."""

from __future__ import annotations

import msgspec

from coldproof.adapters.protocol.capabilities import Capability


class Switch(msgspec.Struct, frozen=True, kw_only=True):
    """A flag or environment variable of a server, or an option of Coldproof.

    `adds`: what Coldproof can see or do with it, in words. `gives`: the capabilities that are absent without it; two
    switches may give the same one, which then needs both. `how`: what to type, for this engine. `safe`: whether a
    server in production may have it; `because`: why, as a clause. `small_pool`: it makes the KV pool so small that
    workloads fill it; `how` then has {blocks} and {tokens} for the largest such pool and half of it.
    """

    name: str
    adds: str
    gives: tuple[Capability, ...]
    how: str
    safe: bool
    because: str
    small_pool: bool = False
