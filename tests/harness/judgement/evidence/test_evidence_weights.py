"""Counters of updates and pauses count what they name and nothing else."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import outcome
from support.weights import history_with_updates, pause, reset, update, with_tokens

from coldproof.adapters.protocol.requests import Stage
from coldproof.adapters.protocol.weights import PauseMode, WeightRoute
from coldproof.harness.features.weights.evidence import Pauses, Weights, pause_facts, weight_facts
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.counters import Evidence

CLEAN: dict[str, Any] = {"resets": (reset(0.8),)}


def request(number: int, prompt: range = range(40), **more: Any) -> Outcome:
    """Return request N for the shared prompt, from second N to N.5."""
    return outcome(number, prompt, **more)


def request_with_tokens(*times: float, finished: float = 3.0, **more: Any) -> Outcome:
    """Return request 0 with tokens at these times."""
    one = with_tokens(request(0, finished=finished, **more), *times)
    return msgspec.structs.replace(one, max_tokens=len(times))


OVER = request_with_tokens(0.5, 1.0, 2.5, 2.6)
SHOWS: list[tuple[Evidence, History, History]] = [
    (
        Weights.UPDATES,
        history_with_updates(request(0), updates=(update(0.7),)),
        history_with_updates(request(0), updates=(update(0.7, error="refused"),)),
    ),
    (
        Weights.UPDATES_FROM_PATH,
        history_with_updates(request(0), updates=(update(0.7),)),
        history_with_updates(request(0), updates=(update(0.7, route=WeightRoute.SAME_PATH),)),
    ),
    (
        Weights.UPDATES_SAME_PATH,
        history_with_updates(request(0), updates=(update(0.7, route=WeightRoute.SAME_PATH),)),
        history_with_updates(request(0), updates=(update(0.7),)),
    ),
    (
        Weights.UPDATES_IN_PLACE,
        history_with_updates(request(0), updates=(update(0.7, route=WeightRoute.IN_PLACE),)),
        history_with_updates(request(0), updates=(update(0.7),)),
    ),
    (
        Weights.UPDATES_TRANSFER,
        history_with_updates(request(0), updates=(update(0.7, route=WeightRoute.TRANSFER),)),
        history_with_updates(request(0), updates=(update(0.7, route=WeightRoute.IN_PLACE),)),
    ),
    (
        Weights.AFTER_UPDATE,
        history_with_updates(request(0), request(1), updates=(update(0.7),), **CLEAN),
        history_with_updates(request(0, range(50, 90)), request(1), updates=(update(0.7),), **CLEAN),
    ),
    (
        Weights.RETURNS,
        history_with_updates(request(0), request(1), updates=(update(0.6), update(0.7, weights=None)), **CLEAN),
        history_with_updates(request(0), request(1), updates=(update(0.6), update(0.7)), **CLEAN),
    ),
    (
        Weights.ADAPTERS_AFTER_UPDATE,
        history_with_updates(request(0, adapter="a"), request(1, adapter="a"), updates=(update(0.7),), **CLEAN),
        history_with_updates(request(0), request(1, adapter="a"), updates=(update(0.7),), **CLEAN),
    ),
    (
        Weights.OLD_HITS,
        history_with_updates(request(0), request(1, cached_tokens=32), updates=(update(0.7),)),
        history_with_updates(request(0), request(1, cached_tokens=32), updates=(update(0.7),), **CLEAN),
    ),
    (
        Weights.IN_FLIGHT,
        history_with_updates(OVER, updates=(update(1.0),)),
        history_with_updates(OVER, updates=(update(3.0),)),
    ),
    (
        Weights.AFTER_IN_FLIGHT,
        history_with_updates(OVER, request(4), updates=(update(1.0),), resets=(reset(3.5),)),
        history_with_updates(OVER, request(4), updates=(update(1.0),)),
    ),
    (
        Weights.AFTER_IN_FLIGHT_SALT,
        history_with_updates(OVER, request(4, salt="new"), updates=(update(1.0),)),
        history_with_updates(OVER, request(4), updates=(update(1.0),), resets=(reset(3.5),)),
    ),
    (
        Weights.CONTINUED,
        history_with_updates(OVER, updates=(update(1.0),), pauses=(pause(1.0, 1.0),), resets=(reset(1.0),)),
        history_with_updates(OVER, updates=(update(1.0),), pauses=(pause(1.0, 1.0),)),
    ),
    (
        Pauses.ENDED_BY_PAUSE,
        history_with_updates(
            request_with_tokens(0.5, finished=1.0, aborted=Stage.DECODE), pauses=(pause(1.0, 2.0, PauseMode.ABORT),)
        ),
        history_with_updates(request_with_tokens(0.5, finished=1.0), pauses=(pause(1.0, 2.0, PauseMode.ABORT),)),
    ),
    (
        Pauses.FINISHED_BEFORE_PAUSE,
        history_with_updates(request_with_tokens(0.5, 1.0, finished=1.0), pauses=(pause(1.0, 2.0, PauseMode.WAIT),)),
        history_with_updates(request_with_tokens(0.5, 3.0), pauses=(pause(1.0, 2.0, PauseMode.WAIT),)),
    ),
    (
        Pauses.KEPT_OVER_PAUSE,
        history_with_updates(OVER, pauses=(pause(1.0, 2.0),)),
        history_with_updates(request_with_tokens(2.5, 2.6), pauses=(pause(1.0, 2.0),)),
    ),
    (
        Pauses.QUEUED_IN_PAUSE,
        history_with_updates(request(1, finished=3.0), pauses=(pause(0.9, 2.0),)),
        history_with_updates(request(3), pauses=(pause(0.9, 2.0),)),
    ),
    (
        Pauses.ASLEEP,
        history_with_updates(request(1, finished=3.0), pauses=(pause(0.9, 2.0, level=1),)),
        history_with_updates(request(1, finished=3.0), request(3), pauses=(pause(0.9, 2.0),)),
    ),
    (
        Pauses.SLEEPS,
        history_with_updates(request(3), pauses=(pause(0.9, 2.0, level=1),)),
        history_with_updates(request(3), pauses=(pause(0.8, 0.9, level=0), pause(0.9, 2.0))),
    ),
    (
        Pauses.DEEP_SLEEPS,
        history_with_updates(request(3), pauses=(pause(0.9, 2.0, level=2),)),
        history_with_updates(request(3), pauses=(pause(0.9, 2.0, level=1),)),
    ),
]


def facts(history: History) -> dict[str, float]:
    """Return all counters of updates and of pauses."""
    return weight_facts(history) | pause_facts(history)


@pytest.mark.parametrize(("evidence", "counts", "other"), SHOWS, ids=[row[0].name for row in SHOWS])
def test_a_counter_counts_what_it_is_about_and_nothing_else(
    evidence: Evidence, counts: History, other: History
) -> None:
    """It rises in one history, and not in a similar one."""
    assert facts(counts)[evidence] == 1
    assert facts(other)[evidence] == 0


def test_every_counter_is_shown() -> None:
    """A history without updates has none of them."""
    none = facts(history_with_updates(request(0)))
    assert set(none) == {row[0] for row in SHOWS}
    assert set(none.values()) == {0}
