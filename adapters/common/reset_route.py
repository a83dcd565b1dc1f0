"""vLLM's routes for cache resets, which attached servers may have as well, and parameters for more than the pool."""

from __future__ import annotations

from urllib.parse import urlencode

from coldproof.adapters.protocol.resets import ResetScope

RESET_PATH = "/reset_prefix_cache"
RESET_PARAMETERS = {ResetScope.RUNNING: "reset_running_requests", ResetScope.SECOND_TIER: "reset_external"}
SIDE_PATHS = {ResetScope.ENCODER: "/reset_encoder_cache", ResetScope.PROCESSOR: "/reset_mm_cache"}


def reset_path(scope: tuple[ResetScope, ...]) -> str:
    """Return the path, with the query that adds what is in `scope`. A scope without a parameter is a KeyError."""
    query = urlencode({RESET_PARAMETERS[one]: "true" for one in scope})
    return f"{RESET_PATH}?{query}" if query else RESET_PATH
