"""Cold answers from a server without salts: how a request gets past its prefix cache, by what the server itself counts.

Each way is tried with a prompt that hits when it is sent again. It is used if the same prompt then has no cached token.
A server that does not count cached tokens shows nothing, so that its answers are not known to be cold.
"""

from __future__ import annotations

import enum

CACHE_FIELD = {"cache_prompt": False}  # of llama.cpp's server


class ColdWay(enum.StrEnum):
    """The ways, in the order in which they are tried."""

    NO_HITS = "a prompt that is sent twice has no cached tokens"
    FIELD = "with the field cache_prompt false, a prompt that was sent before has no cached tokens"
    RESET = "after a reset of the cache, a prompt that was sent before has no cached tokens"
    DISPLACED = "after other prompts, a prompt that was sent before has no cached tokens"
