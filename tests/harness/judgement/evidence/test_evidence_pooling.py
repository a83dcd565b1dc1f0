"""Counters of pooled answers count what they name and nothing else."""

from __future__ import annotations

from typing import Any

import pytest
from support.evidence import evidence
from support.histories import history, outcome, record, shape

from coldproof.adapters.protocol.pooling import Task
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.features.pooling.evidence import Pooling
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.checkers.cached_tokens import check_bounds
from coldproof.harness.judgement.counters import Evidence
from coldproof.harness.judgement.reference_cache import at_least

PROMPT = tuple(range(33, 103))
NEAR, SWAPPED, FAR = (*PROMPT[:60], 5, *PROMPT[61:]), (*PROMPT[:60], 94, 93, *PROMPT[62:]), (*PROMPT[:60], *range(10))


def pooled(number: int, prompt: tuple[int, ...] = PROMPT, *, task: Task = Task.EMBED, **more: Any) -> Outcome:
    """Return a request that got vectors."""
    rows = ((0.5,),) * task.rows(len(prompt))
    return outcome(number, prompt, (), **{"options": ResponseOptions(pooled=task), "pooled": rows, **more})


def token_vectors(number: int, **more: Any) -> Outcome:
    """Return a request that got a vector of each token."""
    return pooled(number, task=Task.TOKEN_EMBED, **more)


def counted(*growth: float, together: bool = False) -> History:
    """Return a history of requests without reported counts, in whose steps the engine counted these hits."""
    steps, total = [], 0.0
    for place, more in enumerate(growth):
        steps.append(record(place, before=total, after=total + more))
        total += more
    sent = [pooled(i, cached_tokens=None, step=min(i, len(growth) - 1)) for i in range(len(growth) + together)]
    return history(*sent, steps=tuple(steps), shape=shape(counts_first_lookups=True))


IN_STEPS = shape(step_tokens=16)
SHOWS: list[tuple[Evidence, History, list[History]]] = [
    (
        Pooling.HITS,
        history(pooled(0), pooled(1, cached_tokens=64)),
        [
            history(pooled(0), pooled(1)),
            history(pooled(0), outcome(1, PROMPT, cached_tokens=64)),
            history(pooled(0), pooled(1, cached_tokens=64, error="lost")),
            history(pooled(0), token_vectors(1, cached_tokens=64)),
        ],
    ),
    (Pooling.HITS, counted(0, 64), [counted(0, 0), counted(0, 64, together=True)]),
    (
        Pooling.SCORED_HITS,
        history(pooled(0), pooled(1, task=Task.RERANK, cached_tokens=64)),
        [history(pooled(0), pooled(1, cached_tokens=64)), history(pooled(0), pooled(1, task=Task.SCORE))],
    ),
    (
        Pooling.CHUNKS,
        history(pooled(0), pooled(1, cached_tokens=48), shape=IN_STEPS),
        [
            history(pooled(0), pooled(1, cached_tokens=64), shape=IN_STEPS),
            history(pooled(0), pooled(1), shape=IN_STEPS),
            history(pooled(0), pooled(1, cached_tokens=48)),
        ],
    ),
    (
        Pooling.NEAR,
        history(pooled(0), pooled(1, NEAR)),
        [history(pooled(0), pooled(1)), history(pooled(0, FAR), pooled(1))],
    ),
    (Pooling.NEAR, history(pooled(0), pooled(1, SWAPPED)), [history(pooled(0), pooled(1, NEAR, salt="red"))]),
    (
        Pooling.TOKENS,
        history(pooled(0), token_vectors(1)),
        [history(pooled(0), pooled(1)), history(token_vectors(0)), history(pooled(0, salt="red"), token_vectors(1))],
    ),
]


@pytest.mark.parametrize(("name", "shown", "others"), SHOWS)
def test_what_counts(name: Evidence, shown: History, others: list[History]) -> None:
    """It counts once, and similar histories do not count."""
    assert evidence(shown, {})[name] == 1
    assert [evidence(one, {})[name] for one in others] == [0] * len(others)


def test_a_vector_of_each_token_needs_no_hit() -> None:
    """Such a request makes no later hit certain either, because the engine may have bypassed the cache."""
    plain = history(pooled(0), pooled(1))
    assert at_least(plain, plain.outcomes[1]) == 64
    for one in (history(pooled(0), token_vectors(1)), history(token_vectors(0), pooled(1))):
        assert at_least(one, one.outcomes[1]) == 0
        assert check_bounds(one) == []
