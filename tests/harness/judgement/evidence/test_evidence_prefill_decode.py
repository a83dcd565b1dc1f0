"""Prompts that a decoder fetched are counted, and a decoder must hit only what it has."""

from __future__ import annotations

import msgspec
import pytest
from support.evidence import evidence
from support.histories import ask, burst, history, outcome, shape

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.features.sides.evidence import Sides
from coldproof.harness.features.tiers.evidence import Tiers
from coldproof.harness.history.records import History, StepRecord
from coldproof.harness.judgement.reference_cache import at_least
from coldproof.harness.workload.steps import Workload

BLOCK = 32
PROMPT = range(100, 100 + 3 * BLOCK)


def history_of(tokens: float | None, requests: int = 1) -> History:
    """Return a history of one burst in which the decoder's counter of fetched tokens grew."""
    before = Metrics(external_hit_tokens=7.0)
    after = Metrics(external_hit_tokens=None if tokens is None else 7.0 + tokens)
    return history(
        *(outcome(number, PROMPT, step=0) for number in range(requests)),
        workload=Workload((burst(*(ask() for _ in range(requests))),)),
        steps=(StepRecord(step=0, started=0, finished=1, before=before, after=after),),
        shape=shape(block_size=BLOCK),
    )


@pytest.mark.parametrize(
    ("tokens", "requests", "fetched", "in_part"),
    [
        (3 * BLOCK, 1, 1, 0),
        (2 * BLOCK, 1, 1, 1),
        (2 * BLOCK + 1, 1, 1, 0),  # the decoder had less than a block
        (0, 1, 0, 0),
        (None, 1, 0, 0),
        (2 * BLOCK, 2, 2, 0),  # which request it was is unknown
    ],
)
def test_prompts_that_were_fetched(tokens: float | None, requests: int, fetched: int, in_part: int) -> None:
    """The decoder's counter shows them. They are counted as fetched in part only if that is certain."""
    facts = evidence(history_of(tokens, requests), {})
    assert (facts[Sides.FETCHED], facts[Sides.PARTLY_FETCHED]) == (fetched, in_part)


@pytest.mark.parametrize(("tokens", "in_part"), [(2 * BLOCK, 0), (BLOCK, 1)])
def test_stored_prompts_lack_the_block_of_the_last_token(tokens: float, in_part: int) -> None:
    """The decoder computes that block, so at most two of three blocks can be found."""
    stored = shape(block_size=BLOCK, publishes_answers=False, second_tier=True)
    facts = evidence(msgspec.structs.replace(history_of(tokens), shape=stored), {})
    assert facts[Sides.PARTLY_FETCHED] == in_part


@pytest.mark.parametrize(("publishes", "loaded"), [(True, 7 + 2 * BLOCK), (False, 0)])
def test_what_a_decoder_fetches_is_not_loaded_from_a_tier(publishes: bool, loaded: int) -> None:
    """One counter has both."""
    one = msgspec.structs.replace(history_of(2 * BLOCK, 1), shape=shape(publishes_answers=publishes))
    facts = evidence(one, {})
    assert facts[Tiers.LOADED] == loaded
    assert bool(facts[Tiers.LOADED_EVICTED]) is publishes


@pytest.mark.parametrize(("publishes", "least"), [(True, 3 * BLOCK), (False, 2 * BLOCK)])
def test_an_engine_that_only_computes_prompts_has_no_answers(publishes: bool, least: int) -> None:
    """A next turn hits the prompt before it, and its answer only if the same engine decoded it."""
    first, turn = range(100, 100 + 2 * BLOCK + 8), range(100, 100 + 3 * BLOCK + 8)
    both = history(
        outcome(0, first, tuple(turn[len(first) :])),
        outcome(1, turn),
        shape=shape(block_size=BLOCK, publishes_answers=publishes),
    )
    assert at_least(both, both.outcomes[1]) == least
