"""A history says which weights a request used, and when an engine promises that no old KV is hit."""

from __future__ import annotations

from typing import Any

import pytest
from support.histories import outcome
from support.weights import NEW, history_with_updates, pause, reset, update, with_tokens

from coldproof.adapters.protocol.weights import WeightPolicy
from coldproof.harness.history.records import Identity, Outcome, ResetRecord
from coldproof.harness.history.weights import Cut, cuts, is_comparable, updates_during


def answered(number: int, **more: Any) -> Outcome:
    """Return request N, which runs from second N to second N.5."""
    return outcome(number, range(40), **more)


def test_a_request_has_the_weights_of_its_time() -> None:
    """The requests are before, during and after an update. A refused update changes nothing."""
    seen = history_with_updates(answered(0), answered(1), answered(2), updates=(update(0.7, error="no"), update(1.2)))
    assert [o.identities for o in seen.outcomes] == [
        (Identity(None, None),),
        (Identity(None, None), Identity(None, None, NEW)),
        (Identity(None, None, NEW),),
    ]
    assert [o.partition.updates for o in seen.outcomes] == [0, 0, 1]
    assert [len(updates_during(seen, o)) for o in seen.outcomes] == [0, 1, 0]


def test_what_is_sent_during_a_pause_is_computed_after_it() -> None:
    """An update within the pause is complete by then, although the request was sent before the update."""
    seen = history_with_updates(answered(1, finished=3.0), updates=(update(1.5),), pauses=(pause(0.9, 2.0),))
    (one,) = seen.outcomes
    assert one.identities == (Identity(None, None, NEW),)
    assert not updates_during(seen, one)


@pytest.mark.parametrize(
    ("policy", "salt", "resets", "promised"),
    [
        (WeightPolicy.ON_RESET, None, (), False),
        (WeightPolicy.ON_RESET, None, (reset(0.8),), True),
        (WeightPolicy.ON_RESET, None, (reset(0.8, success=False),), False),
        (WeightPolicy.ON_RESET, None, (reset(0.6),), True),  # nothing was computed between it and the update
        (WeightPolicy.ON_RESET, None, (reset(0.4),), False),  # request 0 was
        (WeightPolicy.ON_RESET, None, (reset(1.2),), False),  # too late
        (WeightPolicy.ON_RESET, "new", (), True),
        (WeightPolicy.IN_SALT, "new", (), True),
        (WeightPolicy.IN_SALT, "old", (reset(0.8),), False),
        (WeightPolicy.INVALIDATES, None, (), True),
    ],
)
def test_a_promise_follows_from_the_policy(
    policy: WeightPolicy, salt: str | None, resets: tuple[ResetRecord, ...], promised: bool
) -> None:
    """Request 0 has the salt `old`, the update is at 0.7 s, and request 1 comes at 1 s."""
    seen = history_with_updates(
        answered(0, salt="old"), answered(1, salt=salt), updates=(update(0.7),), resets=resets, policy=policy
    )
    assert is_comparable(seen, seen.outcomes[0])
    assert is_comparable(seen, seen.outcomes[1]) is promised


def test_a_cache_that_was_cleared_stays_empty_during_a_pause() -> None:
    """This includes a request in flight that the pause keeps. Without a pause such a request may go on computing."""
    kept, later = answered(0, finished=3.0), answered(4)
    facts: dict[str, Any] = {"updates": (update(1.0),), "resets": (reset(0.9),)}
    assert is_comparable(history_with_updates(kept, later, **facts, pauses=(pause(0.9, 2.0),)), later)
    assert not is_comparable(history_with_updates(kept, later, **facts), later)


def test_an_answer_is_cut_where_the_weights_changed() -> None:
    """The place is known if the engine computes nothing during the update. A client may read a token late."""
    one = with_tokens(answered(0, finished=3.0), 0.5, 1.0, 2.5)
    alone = history_with_updates(one, updates=(update(1.0),))
    assert cuts(alone, alone.outcomes[0]) == [Cut(2, 2, NEW, clear=False)]
    cleared = history_with_updates(one, updates=(update(1.0),), resets=(reset(1.0),), pauses=(pause(1.0, 1.0),))
    assert cuts(cleared, cleared.outcomes[0]) == [Cut(2, 2, NEW, clear=True)]
    slow = history_with_updates(one, updates=(update(0.9, 1.1),))
    assert cuts(slow, slow.outcomes[0]) == [Cut(1, 3, NEW, clear=False)]
    assert cuts(history_with_updates(one), one) == []
