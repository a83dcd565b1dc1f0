"""What an earlier request left in the pool is not loaded from the second tier again, where the counters show it."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import BLOCK, history, outcome, record, shape
from support.weights import reset

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.features.tiers.checks import check_sources
from coldproof.harness.history.records import History, Outcome, StepRecord
from coldproof.harness.schema.verdict import FailureClass

PROMPT = range(100, 100 + 3 * BLOCK + 2)
FULL = 3 * BLOCK  # tokens of whole blocks
TIER = {"second_tier": True, "tier_blocks": 100}


def step(number: int, *, local: float, loaded: float, **more: Any) -> StepRecord:
    """Return a step in which the counters grow by so many tokens."""
    before = Metrics(hit_tokens=0.0, external_hit_tokens=0.0, preemptions=0, failed_loads=0)
    after = msgspec.structs.replace(before, hit_tokens=local, external_hit_tokens=loaded, **more)
    return record(number, before=before, after=after)


def sent_twice(again: Outcome, steps: StepRecord | None = None, **changes: Any) -> History:
    """Return a history of a prompt that is sent again, and is loaded the second time unless `steps` says otherwise."""
    first, second = step(0, local=0, loaded=0), steps or step(1, local=0, loaded=FULL)
    return history(outcome(0, PROMPT), again, steps=(first, second), shape=shape(**{**TIER, **changes}))


AGAIN = outcome(1, PROMPT, cached_tokens=FULL)


def test_a_prompt_that_is_loaded_although_the_pool_had_it_is_lost_reuse() -> None:
    """Its own count of cached tokens is right."""
    (found,) = check_sources(sent_twice(AGAIN), exclusive=True)
    assert (found.failure_class, found.request) == (FailureClass.LOST_REUSE, 1)
    assert found.sentence == (
        f"Request 1 hit nothing in the pool and loaded {FULL} tokens from the second tier, but request 0 had left "
        f"{FULL} in the pool, which had room to keep them."
    )


@pytest.mark.parametrize(
    "made",
    [
        sent_twice(AGAIN, step(1, local=BLOCK, loaded=2 * BLOCK)),  # a copy may have held the rest
        sent_twice(AGAIN, step(1, local=FULL, loaded=0)),
        sent_twice(AGAIN, step(1, local=0, loaded=BLOCK)),  # a counter that is published late
        sent_twice(AGAIN, step(1, local=0, loaded=FULL, preemptions=1)),
        sent_twice(AGAIN, step(1, local=0, loaded=FULL, failed_loads=1)),
        sent_twice(outcome(1, PROMPT, cached_tokens=FULL, salt="red")),
        sent_twice(outcome(1, PROMPT[: 2 * BLOCK], cached_tokens=FULL)),  # one whole block, and the last token
        sent_twice(AGAIN, second_tier=False),
        sent_twice(AGAIN, publishes_answers=False),
        sent_twice(AGAIN, uniform=False),
        sent_twice(AGAIN, block_size=None),
    ],
)
def test_nothing_is_said_where_the_pool_may_have_lost_it(made: History) -> None:
    """Nor where the counters do not tell whose hits they count."""
    assert check_sources(made, exclusive=True) == []


def test_nothing_is_said_of_an_engine_that_others_use() -> None:
    """Their requests move the counters and the pool."""
    assert check_sources(sent_twice(AGAIN), exclusive=False) == []


def test_a_reset_between_empties_the_pool() -> None:
    """The tier is then what has the prompt."""
    made = msgspec.structs.replace(sent_twice(AGAIN), resets=(reset(0.7),))
    assert check_sources(made, exclusive=True) == []


@pytest.mark.parametrize(("pool_blocks", "found"), [(6, 0), (9, 0), (100, 1)])
def test_a_prompt_that_another_one_may_have_evicted_may_be_loaded(pool_blocks: int, found: int) -> None:
    """In a pool with room for both it stays."""
    outcomes = (outcome(0, PROMPT), outcome(1, range(500, 550)), outcome(2, PROMPT, cached_tokens=FULL))
    steps = (step(0, local=0, loaded=0), step(1, local=0, loaded=0), step(2, local=0, loaded=FULL))
    made = history(*outcomes, steps=steps, shape=shape(**{**TIER, "pool_blocks": pool_blocks}))
    assert len(check_sources(made, exclusive=True)) == found
