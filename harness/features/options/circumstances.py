"""Circumstances of a failure: options of responses."""

from __future__ import annotations

from collections.abc import Iterable

from coldproof.harness.case.circumstances import Failure, circumstances, true_ones


@circumstances(170)
def of_options(failure: Failure) -> Iterable[str]:
    """Return which options of a response requests had."""
    options = [request.options for request in failure.requests]
    return true_ones(
        {
            "several answers": any(one.answers > 1 for one in options),
            "prompt logprobs": any(one.prompt_logprobs for one in options),
            "stop string": any(one.stop for one in options),
            "structured output": any(one.pattern for one in options),
        }
    )
