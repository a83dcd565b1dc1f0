"""Workloads of the feature options, as its suites draw them."""

from __future__ import annotations

from coldproof.harness.features.options.workloads import (
    PROMPT_LOGPROBS,
    SEVERAL_ANSWERS,
    STOP_STRINGS,
    STRUCTURED,
    with_response_options,
)

USUAL = {
    "prompt logprobs": lambda on: with_response_options(on, PROMPT_LOGPROBS),
    "several answers": lambda on: with_response_options(on, SEVERAL_ANSWERS),
    "stop strings": lambda on: with_response_options(on, STOP_STRINGS),
    "structured": lambda on: with_response_options(on, STRUCTURED),
}
