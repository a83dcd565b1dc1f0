"""An answer without a cached token is never called the prefix cache's stale state."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from support.histories import history, outcome

from coldproof.adapters.protocol.metrics import Metrics
from coldproof.adapters.protocol.provenance import Writer, WrongRead
from coldproof.adapters.protocol.requests import ResponseOptions
from coldproof.harness.history.records import Identity, StepRecord
from coldproof.harness.judgement.finding import Finding
from coldproof.harness.judgement.no_hits import without_hit
from coldproof.harness.schema.verdict import FailureClass

STALE = Finding(
    checker="tokens",
    failure_class=FailureClass.STALE_STATE,
    sentence="Request 0 differs from the cold answer at token 0: it equals the answer of adapter A.",
    request=0,
    position=0,
)


def class_of(found: Finding = STALE, hits: tuple[float, float] | None = None, **changes: Any) -> FailureClass:
    """Return the class of a finding about a request that reports no cached tokens, with these changes.

    `hits`: the engine's counter before and after its step.
    """
    seen = history(outcome(0, range(40), (7, 8), **{"cached_tokens": 0, **changes}))
    if hits is not None:
        before, after = (Metrics(hit_tokens=count) for count in hits)
        record = StepRecord(step=seen.outcomes[0].step, started=0.0, finished=1.0, before=before, after=after)
        seen = msgspec.structs.replace(seen, steps=(record,))
    return without_hit(seen, found).failure_class


def test_an_older_identitys_answer_without_a_hit_is_not_the_cache() -> None:
    """The cause may be a reload that never took effect. The sentence says why."""
    assert class_of() is FailureClass.NOT_THE_CACHE
    seen = history(outcome(0, range(40), (7, 8), cached_tokens=0))
    assert without_hit(seen, STALE).sentence.startswith(STALE.sentence)
    assert "no cached token" in without_hit(seen, STALE).sentence


@pytest.mark.parametrize(
    "changes",
    [
        {"cached_tokens": 16},
        {"cached_tokens": None},
        {"cached_tokens": None, "cached_between": (0, 0)},
        {"preemptions": 1},
        {"session": "a"},
        {"identities": (Identity(None, None), Identity("a", None))},
        {"options": ResponseOptions(answers=2)},
        {"hits": (0.0, 16.0)},
    ],
    ids=str,
)
def test_what_may_have_hit_keeps_its_class(changes: dict[str, Any]) -> None:
    """An unknown count, a second lookup, KV of a session and the engine's own counter all allow a hit."""
    assert class_of(**changes) is FailureClass.STALE_STATE


def test_a_counter_that_agrees_shows_no_hit() -> None:
    """The counter, like the requests, counts no hit."""
    assert class_of(hits=(64.0, 64.0)) is FailureClass.NOT_THE_CACHE


@pytest.mark.parametrize(("writer", "failure"), [(1, FailureClass.STALE_STATE), (0, FailureClass.NOT_THE_CACHE)])
def test_kv_of_another_request_is_a_hit_whatever_is_counted(writer: int, failure: FailureClass) -> None:
    """KV that the request wrote itself is no hit."""
    read = WrongRead(
        request="n.0.",
        step=0,
        layer=0,
        group=0,
        column=0,
        block=1,
        first=0,
        last=15,
        found=7,
        writer=Writer(request=f"n.{writer}.", position=0, adapter=None, content=None),
    )
    seen = history(outcome(0, range(40), (7, 8), cached_tokens=0), outcome(1, range(40)), nonce="n")
    assert without_hit(msgspec.structs.replace(seen, wrong_reads=(read,)), STALE).failure_class is failure


@pytest.mark.parametrize(
    "found",
    [
        msgspec.structs.replace(STALE, failure_class=FailureClass.CORRUPT),
        msgspec.structs.replace(STALE, failure_class=FailureClass.CROSS_REQUEST),
        msgspec.structs.replace(STALE, checker="bounds"),
        msgspec.structs.replace(STALE, checker="weights"),
    ],
)
def test_other_findings_stay_as_they_are(found: Finding) -> None:
    """They do not say that the cache gave a complete older answer."""
    assert class_of(found) is found.failure_class
