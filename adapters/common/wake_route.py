"""What vLLM calls the parts of an engine that a wake-up brings back, in its server's route and in its methods."""

from __future__ import annotations

from coldproof.adapters.protocol.weights import SleepPart

WAKE_PATH = "/wake_up"
WAKE_TAGS = {SleepPart.WEIGHTS: "weights", SleepPart.KV: "kv_cache"}  # without a tag, everything wakes up


def wake_path(part: SleepPart) -> str:
    """Return the path, with the query that names a part."""
    return f"{WAKE_PATH}?tags={WAKE_TAGS[part]}" if part in WAKE_TAGS else WAKE_PATH
