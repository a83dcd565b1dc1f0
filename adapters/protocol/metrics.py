"""Counters and gauges of an engine. A metric that the engine does not publish is None, never 0."""

from __future__ import annotations

import msgspec


class Metrics(msgspec.Struct, frozen=True, kw_only=True):
    """Monotonic counters and gauges of the engine at one moment. None: the engine does not publish it.

    `external_hit_tokens`: tokens loaded from a second tier; `hit_tokens` does not include them. `slow_hit_tokens`: of
    these, what came from a tier behind it, such as files behind host memory. `resumed_hit_tokens`: the same for
    requests that resume after a preemption; the other two do not include them. `drafted_tokens`: tokens that
    speculative decoding proposed and the model verified; `accepted_tokens`: those of them that were right.
    `cut_images`: chunks of prefill that ended within an image; `preempted_images`: requests with images that resumed
    after a preemption. Only needed where neither steps nor the preemptions of each request are known.
    """

    queried_tokens: float | None = None
    hit_tokens: float | None = None
    external_queried_tokens: float | None = None
    external_hit_tokens: float | None = None
    slow_hit_tokens: float | None = None
    resumed_hit_tokens: float | None = None
    failed_loads: float | None = None
    preemptions: float | None = None
    drafted_tokens: float | None = None
    accepted_tokens: float | None = None
    cut_images: float | None = None
    preempted_images: float | None = None
    running: float | None = None
    waiting: float | None = None
    pool_usage: float | None = None

    def since(self, start: Metrics) -> Metrics:
        """Return these metrics with counters relative to `start`. Gauges stay as they are."""
        return msgspec.structs.replace(self, **{n: increase(getattr(start, n), getattr(self, n)) for n in COUNTERS})


GAUGES = ("running", "waiting", "pool_usage")
COUNTERS = tuple(name for name in Metrics.__struct_fields__ if name not in GAUGES)


def increase(before: float | None, after: float | None) -> float | None:
    """Return the increase of a counter, or None if either value is unknown."""
    return None if before is None or after is None else after - before
