"""A counter of queues counts requests that waited behind one which left the queue."""

from __future__ import annotations

from typing import Any

import pytest
from support.evidence import evidence
from support.histories import history, outcome

from coldproof.adapters.protocol.requests import Stage, Token
from coldproof.harness.features.resets.evidence import Queues
from coldproof.harness.history.records import Outcome

PROMPT = range(100, 140)


def victim(stage: Stage | None = Stage.QUEUED) -> Outcome:
    """Return a request that was sent at 0 and ended at 0.5."""
    return outcome(0, PROMPT, (), aborted=stage, finish_reason=None if stage else "length")


def behind(sent: float, first: float, **more: Any) -> Outcome:
    """Return a request with its first token at a time."""
    tokens = (Token(id=7, at=first - sent), Token(id=8, at=first - sent + 0.1))
    return outcome(1, PROMPT, (7, 8), **{"tokens": tokens, "sent": sent, "finished": first + 0.2, **more})


@pytest.mark.parametrize(
    ("first", "second", "count"),
    [
        (victim(), behind(0.2, 0.7), 1),
        (victim(), behind(0.2, 0.4), 0),  # it did not wait until the other one had left
        (victim(), behind(0.6, 0.7), 0),  # it came when the other one had left
        (victim(), behind(0.2, 0.7, error="no"), 0),
        (victim(Stage.PREFILL), behind(0.2, 0.7), 0),
        (victim(None), behind(0.2, 0.7), 0),
    ],
)
def test_only_a_request_behind_an_abort_in_the_queue_counts(first: Outcome, second: Outcome, count: int) -> None:
    """The queue is then without one that it was counted in."""
    assert evidence(history(first, second), {})[Queues.BEHIND] == count
