"""Limits to draw workloads in, and helpers that describe what was drawn."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
from hypothesis import HealthCheck, Phase, find, settings
from hypothesis import strategies as st

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.harness.workload.generators.prompts import ADAPTERS_TOGETHER, BASE_WITH_ADAPTER, WorkloadLimits
from coldproof.harness.workload.steps import Request, Workload
from coldproof.harness.workload.tokens import new_prompt_length

SLOW = (HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example)


def limits(
    *,
    block: int = 32,
    longest: int = 2048,
    pool: int | None = None,
    most_tokens: int = 6000,
    slots: int = 4,
    scale: float = 1.0,
) -> WorkloadLimits:
    """Return limits with three contents and every mixture, for an engine that can do everything."""
    return WorkloadLimits(
        block=block,
        slots=slots,
        contents=("A", "B", "C"),
        mixtures=frozenset({ADAPTERS_TOGETHER, BASE_WITH_ADAPTER}),
        longest=longest,
        pool=pool,
        most_tokens=most_tokens,
        scale=scale,
        versions=("A", "B"),
    )


few_examples = settings(
    max_examples=12,
    deadline=None,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=SLOW,
)

any_at_all = settings(max_examples=500, deadline=None, database=None, phases=[Phase.generate])

LIMITS = {
    "tight": limits(longest=512, pool=512),
    "roomy": limits(pool=100_000),
    "unknown pool": limits(),
    "pool that just may be filled": limits(pool=3000),
    "blocks of one": limits(block=1, longest=512, pool=512),
    "large blocks": limits(block=128, pool=2048, most_tokens=12_000),
    "tiny model": limits(longest=128, pool=512),
    "many models' lengths": limits(pool=65_536, most_tokens=200_000),
    "one model's length": limits(longest=131_072, pool=65_536, most_tokens=200_000),
    "a slow model": limits(pool=768, scale=0.03),
    "a slower one": limits(pool=100_000, scale=0.3),
}


def lengths(workload: Workload) -> list[int]:
    """Return the tokens of each request with its answer, and of earlier turns the part that it keeps."""
    total: list[int] = []
    for _, _, request in workload.requests():
        prompt = request.prompt
        before = 0 if prompt.continues is None else len(range(total[prompt.continues])[prompt.start : prompt.end])
        total.append(before + new_prompt_length(request.prompt) + request.max_tokens)
    return total


TIGHT, ROOMY = LIMITS["tight"], LIMITS["roomy"]


def without(on: WorkloadLimits, *missing: Capability) -> WorkloadLimits:
    """Return the same limits for an engine that lacks these capabilities."""
    return msgspec.structs.replace(on, can=on.can - set(missing))


def requests_of(workload: Workload) -> list[Request]:
    """Return all requests of a workload."""
    return [request for _, _, request in workload.requests()]


def found(strategy: st.SearchStrategy[Workload], wanted: Callable[[Workload], bool]) -> Workload:
    """Return a drawn workload that satisfies the condition. Fail if none is drawn."""
    return find(strategy, wanted, settings=any_at_all)
