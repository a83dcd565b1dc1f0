"""Counters of several ranks count changes that every rank served requests after, and hits on other ranks."""

from __future__ import annotations

from typing import Any

import pytest
from support.evidence import evidence
from support.histories import ask, burst, history, outcome, put, shape

from coldproof.adapters.protocol.weights import PauseMode
from coldproof.harness.features.ranks.evidence import Ranks
from coldproof.harness.history.records import CachePartition, History, Outcome, StepRecord
from coldproof.harness.workload.steps import Burst, Meanwhile, Pause, Reset, Resume, Step, UpdateWeights, Workload

PROMPT = range(100, 140)
TWO: dict[str, Any] = {"shape": shape(ranks=2)}


def on_rank(rank: int | None, number: int, step: int, **more: Any) -> Outcome:
    """Return the same prompt on a rank. With None, the engine chooses the rank."""
    partition = CachePartition(None, 0, None) if rank is None else CachePartition(None, 0, None, rank=rank)
    return outcome(number, PROMPT, partition=partition, step=step, **more)


def history_around(change: Step, *outcomes: Outcome, error: str | None = None, **more: Any) -> History:
    """Return a history of bursts before and after a change, which is its middle step."""
    steps: list[Step] = [change if number == 2 else burst(ask()) for number in range(6)]
    known = history(*outcomes, **more)
    records = [
        StepRecord(step=n, started=n, finished=n, before=known.steps[0].before, after=known.steps[0].after)
        for n in range(6)
    ]
    records[2] = StepRecord(
        step=2, started=2, finished=2, before=known.steps[0].before, after=known.steps[0].after, error=error
    )
    return history(*outcomes, workload=Workload(tuple(steps)), steps=tuple(records), **more)


BEFORE = (on_rank(0, 0, 0), on_rank(1, 1, 1))
BOTH = (*BEFORE, on_rank(0, 2, 3), on_rank(1, 3, 4))
PAUSED = Burst(
    requests=(ask(),),
    meanwhile=Meanwhile(change=Pause(mode=PauseMode.KEEP, clear=True), after_tokens=1, then=(Resume(),)),
)


@pytest.mark.parametrize(
    "change", [Reset(), put("B"), UpdateWeights(version="other"), PAUSED], ids=["reset", "load", "weights", "pause"]
)
def test_a_change_counts_once_if_every_rank_got_a_request_after_it(change: Step) -> None:
    """It counts for what the rank had computed before."""
    assert evidence(history_around(change, *BOTH, **TWO), {})[Ranks.ASKED] == 1


@pytest.mark.parametrize(
    "seen",
    [
        history_around(Reset(), *BOTH[:3], **TWO),
        history_around(Reset(), *BEFORE, on_rank(0, 2, 3), on_rank(None, 3, 4), **TWO),
        history_around(Reset(), *BEFORE, on_rank(0, 2, 3), on_rank(1, 3, 4, error="refused"), **TWO),
        history_around(Reset(), BEFORE[0], on_rank(0, 1, 1), on_rank(0, 2, 3), on_rank(1, 3, 4), **TWO),
        history_around(Reset(), *BOTH, error="refused", **TWO),
        history_around(burst(ask()), *BOTH, **TWO),
    ],
    ids=["one rank", "the engine chose", "no answer", "nothing before", "refused", "no change"],
)
def test_a_change_does_not_count_if_a_rank_got_no_request(seen: History) -> None:
    """A rank without a request shows nothing."""
    assert evidence(seen, {})[Ranks.ASKED] == 0


def test_any_request_reaches_all_ranks_of_a_model_that_is_spread_over_them() -> None:
    """All its ranks serve each request."""
    assert evidence(history_around(Reset(), on_rank(None, 0, 0), on_rank(None, 1, 3)), {})[Ranks.ASKED] == 1
    assert evidence(history_around(Reset(), on_rank(None, 0, 0)), {})[Ranks.ASKED] == 0


def test_hits_of_other_ranks_and_prompts_of_another_rank_are_counted() -> None:
    """A hit on rank 0 may come from a server that ignores ranks."""
    hit: dict[str, Any] = {"cached_tokens": 32}
    found = evidence(
        history(on_rank(0, 0, 0), on_rank(1, 1, 1), on_rank(1, 2, 2, **hit), on_rank(0, 3, 3, **hit), **TWO), {}
    )
    assert (found[Ranks.HITS], found[Ranks.OTHER_RANK]) == (1, 1)
    assert evidence(history(on_rank(None, 0, 0), on_rank(1, 1, 1), **TWO), {})[Ranks.OTHER_RANK] == 0
