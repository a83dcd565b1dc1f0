"""Counters of images that other caches must not confuse, and conditions of requests with images after new weights."""

from __future__ import annotations

import msgspec
import pytest
from support.evidence import evidence
from support.histories import history, outcome

from coldproof.adapters.protocol.images import image_id, image_positions
from coldproof.adapters.protocol.resets import ResetScope
from coldproof.adapters.protocol.weights import WeightPolicy, WeightRoute
from coldproof.harness.features.images.cache_evidence import ImageCaches
from coldproof.harness.history.records import CachePartition, History, Identity, Outcome, ResetRecord, WeightUpdate
from coldproof.harness.history.weights import starts_clean
from coldproof.harness.judgement.counters import Evidence

ENCODER, PROCESSOR = (ResetScope.ENCODER,), (ResetScope.PROCESSOR,)


def shown(number: int, name: str, *, cached_tokens: int = 0) -> Outcome:
    """Return a request with ten tokens, an image of sixteen positions, and more tokens."""
    prompt = (*range(40, 50), *image_positions(image_id(name), 16), *range(60, 100))
    return outcome(number, prompt, hidden=(0,) * len(prompt), cached_tokens=cached_tokens)


def reset_at(at: float, *scope: ResetScope, success: bool = True) -> ResetRecord:
    return ResetRecord(began=at, ended=at + 0.1, success=success, scope=scope)


def with_adapter(name: str, content: str, sent: Outcome) -> Outcome:
    """Return the request with an adapter of this name and content."""
    of = CachePartition(name, 1, None)
    return msgspec.structs.replace(sent, identities=(Identity(content, None),), partition=of)


def updated(*resets: ResetRecord, beside: tuple[ResetRecord, ...] = (), **changes: object) -> History:
    """Return a request before and one after an update of the weights at 0.6, both with the same image."""
    update = WeightUpdate(began=0.6, ended=0.6, version="A", weights="a", route=WeightRoute.PATH)
    later = msgspec.structs.replace(shown(1, "cat"), identities=(Identity(None, None, "a"),))
    made = history(shown(0, "cat"), later, updates=(update,), resets=resets, side_resets=beside)
    return msgspec.structs.replace(made, **changes)


PAIR = (shown(0, "cat"), shown(1, "cat"))


@pytest.mark.parametrize(
    ("fact", "shows", "other"),
    [
        (
            ImageCaches.AFTER_ENCODER,
            history(*PAIR, side_resets=(reset_at(0.6, *ENCODER),)),
            history(*PAIR, side_resets=(reset_at(0.6, *ENCODER, success=False), reset_at(0.6, *PROCESSOR))),
        ),
        (
            ImageCaches.AFTER_PROCESSOR,
            history(*PAIR, side_resets=(reset_at(0.6, *PROCESSOR),)),
            history(shown(0, "dog"), shown(1, "cat"), side_resets=(reset_at(0.6, *PROCESSOR),)),
        ),
        (
            ImageCaches.AFTER_PREFIX,
            history(*PAIR, resets=(reset_at(0.6),)),
            history(*PAIR, resets=(reset_at(0.6, *ENCODER),)),
        ),
        (ImageCaches.AFTER_ENCODER, history(*PAIR, side_resets=(reset_at(0.6, *ENCODER),)), history(*PAIR)),
        (
            ImageCaches.AFTER_RELOAD,
            history(with_adapter("t", "a", PAIR[0]), with_adapter("t", "b", PAIR[1])),
            history(with_adapter("t", "a", PAIR[0]), with_adapter("u", "b", PAIR[1])),
        ),
        (
            ImageCaches.OF_OTHERS,
            history(with_adapter("t", "a", PAIR[0]), PAIR[1]),
            history(with_adapter("t", "a", PAIR[0]), with_adapter("t", "a", PAIR[1])),
        ),
        (
            ImageCaches.AFTER_UPDATE,
            updated(reset_at(0.7, *ENCODER)),
            updated(reset_at(0.7)),
        ),
    ],
)
def test_what_counts(fact: Evidence, shows: History, other: History) -> None:
    assert (evidence(shows, {})[fact], evidence(other, {})[fact]) == (1, 0)


def test_an_image_that_the_prefix_cache_covers_does_not_count() -> None:
    """Nothing of it is computed, so no other cache is read."""
    covered = shown(1, "cat", cached_tokens=32)
    made = history(shown(0, "cat"), covered, side_resets=(reset_at(0.6, *ENCODER),))
    assert evidence(made, {})[ImageCaches.AFTER_ENCODER] == 0


@pytest.mark.parametrize(
    ("made", "clean"),
    [
        (updated(reset_at(0.7)), False),
        (updated(reset_at(0.7, *ENCODER)), True),
        (updated(reset_at(0.7, *ENCODER, success=False)), False),
        (updated(reset_at(0.85), beside=(reset_at(0.7, *ENCODER),)), True),
        (updated(reset_at(0.7), beside=(reset_at(0.85, *ENCODER),)), True),  # nothing was computed between the two
        (updated(beside=(reset_at(0.7, *ENCODER),)), False),
        (updated(reset_at(0.7), beside=(reset_at(0.85, *PROCESSOR),)), False),
        (updated(policy=WeightPolicy.INVALIDATES), True),
        (updated(reset_at(0.7, *ENCODER), policy=WeightPolicy.IN_SALT), False),
    ],
)
def test_new_weights_need_a_reset_of_both_caches(made: History, clean: bool) -> None:
    """The prefix cache and the encoder cache must be reset, unless the engine promises that an update does it."""
    assert starts_clean(made, made.outcomes[1]) is clean


def test_what_was_computed_between_the_two_resets_may_be_wrong() -> None:
    """The prefix cache then has KV of the encoder's output with the old weights."""
    made = updated(reset_at(0.7), beside=(reset_at(0.88, *ENCODER),))
    between = msgspec.structs.replace(shown(2, "cat"), sent=0.82, finished=0.87)
    with_between = msgspec.structs.replace(made, outcomes=(*made.outcomes, between))
    assert starts_clean(made, made.outcomes[1])
    assert not starts_clean(with_between, made.outcomes[1])
