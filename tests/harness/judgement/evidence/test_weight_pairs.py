"""Requests after weight updates are counted under the right pair, and other requests do not count."""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import ask, burst, outcome
from support.weights import history_with_updates, pause, reset, update

from coldproof.adapters.protocol.weights import PauseMode, WeightPolicy, WeightRoute
from coldproof.harness.history.records import History, Outcome, ResetRecord
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.weight_pairs import pair_counts
from coldproof.harness.schema.verdict import FailureClass
from coldproof.harness.schema.weight_updates import Invalidation
from coldproof.harness.workload.steps import Pause, Reset, Resume, Sleep, UpdateWeights, Wake, Workload

UPDATE = UpdateWeights(version="A")


def request(number: int, prompt: range = range(40), **more: Any) -> Outcome:
    """Return request N for the shared prompt, from second N to N.5."""
    return outcome(number, prompt, **more)


def finding_about(number: int | None, failure_class: FailureClass = FailureClass.STALE_STATE) -> Finding:
    """Return a finding about a request."""
    return Finding(checker="tokens", failure_class=failure_class, request=number, sentence="it differs")


def updated(**changes: Any) -> History:
    """Return a history of request 0, an update at 0.7 and request 1 for the same prompt."""
    return history_with_updates(request(0), request(1), **{"updates": (update(0.7),), **changes})


def pairs(history: History, *findings: Finding) -> list[tuple[Invalidation, int, int, int | None]]:
    """Return what a history counts: invalidation, requests, wrong requests, hits."""
    return [(one.invalidation, one.requests, one.wrong, one.hits) for one in pair_counts(history, findings)]


PAIRS: dict[Invalidation, History] = {
    Invalidation.UPDATE: updated(policy=WeightPolicy.INVALIDATES),
    Invalidation.RESET: updated(resets=(reset(0.8),)),
    Invalidation.RESET_BEFORE: updated(resets=(reset(0.6),)),
    Invalidation.KEEP_AROUND: updated(pauses=(pause(0.6, 0.8),), resets=(reset(0.6),)),
    Invalidation.KEEP_AFTER: updated(pauses=(pause(0.8, 0.9),), resets=(reset(0.8),)),
    Invalidation.ABORT_AROUND: updated(pauses=(pause(0.6, 0.8, PauseMode.ABORT),), resets=(reset(0.6),)),
    Invalidation.ABORT_AFTER: updated(pauses=(pause(0.8, 0.9, PauseMode.ABORT),), resets=(reset(0.8),)),
    Invalidation.WAIT_AROUND: updated(pauses=(pause(0.6, 0.8, PauseMode.WAIT),), resets=(reset(0.6),)),
    Invalidation.WAIT_AFTER: updated(pauses=(pause(0.8, 0.9, PauseMode.WAIT),), resets=(reset(0.8),)),
    Invalidation.SLEEP_BEFORE: updated(pauses=(pause(0.6, 0.65, PauseMode.ABORT, level=1),), resets=(reset(0.6),)),
    Invalidation.SLEEP_AFTER: updated(pauses=(pause(0.8, 0.9, PauseMode.ABORT, level=1),), resets=(reset(0.8),)),
    Invalidation.DEEP_SLEEP: updated(pauses=(pause(0.6, 0.8, PauseMode.ABORT, level=2),), resets=(reset(0.6),)),
    Invalidation.SALT: history_with_updates(request(0), request(1, salt="version-1"), updates=(update(0.7),)),
    Invalidation.NOTHING: updated(),
}


@pytest.mark.parametrize("by", Invalidation)
def test_a_request_belongs_to_what_invalidated_the_cache(by: Invalidation) -> None:
    """There is one case for each row of the report's table. Without a promised invalidation, no request is wrong."""
    compared = by is not Invalidation.NOTHING
    assert pairs(PAIRS[by], finding_about(1)) == [(by, 1, int(compared), None if compared else 0)]
    assert pairs(PAIRS[by], finding_about(0), finding_about(None)) == [(by, 1, 0, None if compared else 0)]


@pytest.mark.parametrize("failure_class", [FailureClass.LOST_REUSE, FailureClass.API, FailureClass.HANG])
def test_a_finding_that_says_nothing_about_old_kv_makes_no_request_wrong(failure_class: FailureClass) -> None:
    """A lost hit is the opposite of a hit on old KV."""
    assert pairs(PAIRS[Invalidation.RESET], finding_about(1, failure_class)) == [(Invalidation.RESET, 1, 0, None)]


def test_the_route_is_that_of_the_last_update() -> None:
    """An earlier update by another route does not affect the request."""
    updates = (update(0.6), update(0.7, weights="third", route=WeightRoute.SAME_PATH))
    (one,) = pair_counts(updated(updates=updates, resets=(reset(0.8),)), [])
    assert (one.route, one.policy) == (WeightRoute.SAME_PATH, WeightPolicy.ON_RESET)


def test_hits_of_old_kv_are_counted_where_nothing_is_promised() -> None:
    """A failed reset promises nothing. An engine without counts has no count of hits."""
    refused: tuple[ResetRecord, ...] = (reset(0.8, success=False),)
    for cached, hits in ((32, 1), (0, 0), (None, None)):
        seen = history_with_updates(
            request(0), request(1, cached_tokens=cached), updates=(update(0.7),), resets=refused
        )
        assert pairs(seen) == [(Invalidation.NOTHING, 1, 0, hits)]


@pytest.mark.parametrize(
    "seen",
    [
        history_with_updates(request(0), request(1)),
        history_with_updates(request(0, range(50, 90)), request(1), updates=(update(0.7),), resets=(reset(0.8),)),
        history_with_updates(request(0), request(1), updates=(update(0.7, error="refused"),), resets=(reset(0.8),)),
        history_with_updates(request(0), request(1, error="no answer"), updates=(update(0.7),), resets=(reset(0.8),)),
        history_with_updates(request(0), request(1), updates=(update(1.2),), resets=(reset(1.3),)),
        history_with_updates(request(0, adapter="a"), request(1), updates=(update(0.7),), resets=(reset(0.8),)),
    ],
    ids=["no update", "no shared block", "refused", "no answer", "in flight", "of an adapter"],
)
def test_other_requests_do_not_count(seen: History) -> None:
    """They cannot hit old KV, or have no cold answer to be compared with."""
    assert pairs(seen, finding_about(1)) == []


@pytest.mark.parametrize(
    ("changes", "by"),
    [
        ((Pause(mode=PauseMode.KEEP, clear=True), UPDATE, Resume()), Invalidation.KEEP_AROUND),
        ((UPDATE, Pause(mode=PauseMode.KEEP, clear=True), Resume()), Invalidation.KEEP_AFTER),
        ((Sleep(1), Wake(), UPDATE), Invalidation.SLEEP_BEFORE),
        ((UPDATE, Sleep(1), Wake()), Invalidation.SLEEP_AFTER),
        ((Reset(), UPDATE), Invalidation.RESET_BEFORE),
        ((UPDATE, Reset()), Invalidation.RESET),
    ],
)
def test_the_workload_decides_between_equal_times(changes: tuple[Any, ...], by: Invalidation) -> None:
    """The clock of a stepped engine stands still while nothing runs, so all of it happens at one time."""
    level = 1 if Sleep(1) in changes else None
    pauses = () if Reset() in changes else (pause(0.7, 0.7, level=level),)
    workload = Workload((burst(ask()), *changes, burst(ask())))
    seen = updated(workload=workload, pauses=pauses, resets=(reset(0.7),))
    assert pairs(seen) == [(by, 1, 0, None)]
