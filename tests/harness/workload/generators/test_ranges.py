"""Generators reach the edges of each quantity. docs/reach.md lists which generator draws what."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import HealthCheck, find, settings
from support.drawn_workloads import few_examples, limits
from support.workload_families import FAMILIES

from coldproof.harness.workload.generators.prompts import WorkloadLimits
from coldproof.harness.workload.steps import Burst, Workload
from coldproof.harness.workload.tokens import new_prompt_length

ROOMY = limits(most_tokens=12_000)
SEARCH = settings(few_examples, max_examples=3000, suppress_health_check=list(HealthCheck))


def blocks(workload: Workload) -> list[float]:
    """Return the lengths of the prompts, in blocks of 32 tokens."""
    return [new_prompt_length(request.prompt) / 32 for _, _, request in workload.requests()]


EDGES: dict[str, tuple[str, WorkloadLimits, Callable[[Workload], object]]] = {
    "a disconnect at the first token": (
        "aborts",
        ROOMY,
        lambda w: any(r.abort and r.abort.after_tokens == 1 for _, _, r in w.requests()),
    ),
    "a disconnect one token before the end": (
        "aborts",
        ROOMY,
        lambda w: any(r.abort and r.abort.after_tokens == r.max_tokens - 1 for _, _, r in w.requests()),
    ),
    "answers of two tokens": ("repeats", ROOMY, lambda w: any(r.max_tokens == 2 for _, _, r in w.requests())),
    "seventeen sharers of a prefix": (
        "traffic",
        ROOMY,
        lambda w: any(isinstance(s, Burst) and len({r.prompt for r in s.requests}) >= 17 for s in w.steps),
    ),
    "seventeen salts": ("salts", ROOMY, lambda w: len({r.salt for _, _, r in w.requests()}) >= 17),
    "long salts that differ at their end": (
        "salts",
        ROOMY,
        lambda w: len({r.salt[-1] for _, _, r in w.requests() if r.salt and len(r.salt) > 100}) >= 2,
    ),
    "the longest prompt": ("repeats", ROOMY, lambda w: max(blocks(w)) > 58),
    "a prompt of half that length": ("repeats", ROOMY, lambda w: 26 < max(blocks(w)) < 34),
    "priorities of both signs": (
        "crowds",
        limits(pool=512, longest=512),
        lambda w: min(r.priority for _, _, r in w.requests()) < 0 < max(r.priority for _, _, r in w.requests()),
    ),
}


@pytest.mark.parametrize("edge", EDGES)
def test_an_edge_is_drawn(edge: str) -> None:
    """The generator for this edge draws it."""
    family, on, wanted = EDGES[edge]
    assert wanted(find(FAMILIES[family](on), lambda workload: bool(wanted(workload)), settings=SEARCH))
