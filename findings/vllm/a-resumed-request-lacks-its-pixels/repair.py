"""Send a request's pixels to the worker also where a hit covers them.

If the request is preempted and its next hit is shorter, the encoder runs, and the worker has only what it was sent at
the start.
"""

from __future__ import annotations

from typing import Any

from coldproof.adapters.spec.repair import part, wrap

RELEASES = "==0.32.0"


def install() -> None:
    """Plant the repair."""

    @wrap(part("vllm.v1.core.sched.output"), "strip_covered_mm_data", "return [maybe_strip(f) for f in mm_features]")
    def _(_original: Any, features: Any, *_arguments: Any, **_options: Any) -> Any:
        return features
