"""Counters of several ranks: what counts as asked, and what does not."""

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


def on(rank: int | None, number: int, step: int, **more: Any) -> Outcome:
    """The same prompt on a rank; None: the engine chooses."""
    residence = CachePartition(None, 0, None) if rank is None else CachePartition(None, 0, None, rank=rank)
    return outcome(number, PROMPT, residence=residence, step=step, **more)


def around(change: Step, *outcomes: Outcome, error: str | None = None, **more: Any) -> History:
    """A history whose middle step is a change: bursts before it, and bursts after it."""
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


BEFORE = (on(0, 0, 0), on(1, 1, 1))
BOTH = (*BEFORE, on(0, 2, 3), on(1, 3, 4))
PAUSED = Burst(
    requests=(ask(),),
    meanwhile=Meanwhile(change=Pause(mode=PauseMode.KEEP, clear=True), after_tokens=1, then=(Resume(),)),
)


@pytest.mark.parametrize(
    "change", [Reset(), put("B"), UpdateWeights(version="other"), PAUSED], ids=["reset", "load", "weights", "pause"]
)
def test_a_change_counts_once_if_every_rank_was_asked_after_it(change: Step) -> None:
    """For what it had computed before."""
    assert evidence(around(change, *BOTH, **TWO), {})[Ranks.ASKED] == 1


@pytest.mark.parametrize(
    "short",
    [
        around(Reset(), *BOTH[:3], **TWO),
        around(Reset(), *BEFORE, on(0, 2, 3), on(None, 3, 4), **TWO),
        around(Reset(), *BEFORE, on(0, 2, 3), on(1, 3, 4, error="refused"), **TWO),
        around(Reset(), BEFORE[0], on(0, 1, 1), on(0, 2, 3), on(1, 3, 4), **TWO),
        around(Reset(), *BOTH, error="refused", **TWO),
        around(burst(ask()), *BOTH, **TWO),
    ],
    ids=["one rank", "the engine chose", "no answer", "nothing before", "refused", "no change"],
)
def test_it_does_not_count_otherwise(short: History) -> None:
    """A rank that was not asked shows nothing."""
    assert evidence(short, {})[Ranks.ASKED] == 0


def test_a_model_that_is_spread_over_ranks_is_asked_by_any_request() -> None:
    """All its ranks serve each request."""
    assert evidence(around(Reset(), on(None, 0, 0), on(None, 1, 3)), {})[Ranks.ASKED] == 1
    assert evidence(around(Reset(), on(None, 0, 0)), {})[Ranks.ASKED] == 0


def test_hits_of_other_ranks_and_prompts_of_another_rank_are_counted() -> None:
    """A hit on rank 0 may come of a server that ignores ranks."""
    hit: dict[str, Any] = {"cached_tokens": 32}
    found = evidence(history(on(0, 0, 0), on(1, 1, 1), on(1, 2, 2, **hit), on(0, 3, 3, **hit), **TWO), {})
    assert (found[Ranks.HITS], found[Ranks.OTHER_RANK]) == (1, 1)
    assert evidence(history(on(None, 0, 0), on(1, 1, 1), **TWO), {})[Ranks.OTHER_RANK] == 0
