"""Counters of prompts with images count what they name, and the expected hits follow from the images."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from support.evidence import Shown, miscounted
from support.histories import history, outcome, record

from coldproof.adapters.protocol.engine_steps import Chunk, EngineStep
from coldproof.adapters.protocol.images import Arguments, Encoding, SentImage, image_id, image_positions
from coldproof.adapters.protocol.metrics import Metrics
from coldproof.harness.case.signature import signature
from coldproof.harness.features.images.evidence import Images
from coldproof.harness.history.records import History, Outcome
from coldproof.harness.judgement.reference_cache import at_least, at_most
from coldproof.harness.schema.verdict import FailureClass

TEXT, TAIL, TOKENS = tuple(range(40, 50)), tuple(range(60, 100)), 16
PLAIN = SentImage()


def shown(
    number: int, *names: str, sent: SentImage = PLAIN, text: tuple[int, ...] = TEXT, variant: int = 0, **more: Any
) -> Outcome:
    """Return a request with images after text, and more text after them."""
    ids = [image_id(name, variant, sent.arguments.look) for name in names]
    images = tuple(position for one in ids for position in image_positions(one, TOKENS))
    prompt = (*text, *images, *TAIL)
    hidden = [0] * len(prompt)
    for i in range(len(names)):
        hidden[len(text) + TOKENS * i] = sent.hidden()
    return outcome(number, prompt, hidden=tuple(hidden), **more)


def stepped(*ends: int) -> History:
    """Return a history of one request whose prefill was split at these positions."""
    one = shown(0, "cat")
    edges = (0, *ends, len(one.prompt))
    chunks = (Chunk("0", start, end, len(one.prompt)) for start, end in pairwise(edges))
    return history(one, engine_steps=tuple(EngineStep(at=float(i), chunks=(c,)) for i, c in enumerate(chunks)))


def counted(cut: float | None, preempted: float | None) -> History:
    """Return a history of an engine that records no steps, with these values of its counters.

    The counters start at 3.
    """
    before = Metrics(cut_images=3, preempted_images=3) if cut is not None else Metrics()
    after = Metrics(cut_images=cut, preempted_images=preempted)
    return history(shown(0, "cat"), steps=(record(0, before=before, after=after),))


NAMED, PNG, HOLE = SentImage(uuid=7), SentImage(Encoding.PNG), SentImage(Encoding.TRANSPARENT)
USUAL, RESCALED, NORMALIZED = (
    SentImage(arguments=one) for one in (Arguments.AS_CONFIGURED, Arguments.RESCALED, Arguments.NORMALIZED)
)
SHOWS: list[Shown] = [
    (
        Images.PROMPTS,
        history(shown(0, "cat")),
        [history(outcome(0, TEXT)), history(shown(0, "cat", error="x"))],
    ),
    (
        Images.HITS,
        history(shown(0, "cat"), shown(1, "cat", cached_tokens=16)),
        [history(shown(0, "cat"), shown(1, "cat", cached_tokens=10)), history(outcome(0, TEXT, cached_tokens=9))],
    ),
    (
        Images.HITS_INSIDE,
        history(shown(0, "cat"), shown(1, "cat", cached_tokens=16)),
        [
            history(shown(0, "cat"), shown(1, "cat", cached_tokens=10)),
            history(shown(0, "cat"), shown(1, "cat", cached_tokens=26)),
            history(shown(0, "cat"), shown(1, "cat", cached_tokens=48)),
        ],
    ),
    (
        Images.OTHER_IMAGE,
        history(shown(0, "cat"), shown(1, "dog")),
        [
            history(shown(0, "cat"), shown(1, "cat")),
            history(shown(0, "cat"), shown(1, "dog", salt="red")),
            history(shown(0, "cat"), shown(1, "dog", text=TEXT[:-1])),
            history(shown(0, "cat"), outcome(1, (*TEXT, *range(100, 130)))),
        ],
    ),
    (
        Images.SAME_UUID,
        history(shown(0, "cat", sent=NAMED), shown(1, "dog", sent=NAMED)),
        [
            history(shown(0, "cat", sent=NAMED), shown(1, "cat", sent=NAMED)),
            history(shown(0, "cat", sent=NAMED), shown(1, "dog")),
            history(shown(0, "cat"), shown(1, "dog")),
        ],
    ),
    (
        Images.RECODED,
        history(shown(0, "cat"), shown(1, "cat", sent=PNG)),
        [
            history(shown(0, "cat"), shown(1, "dog", sent=PNG)),
            history(shown(0, "cat", sent=PNG), shown(1, "cat", sent=PNG)),
        ],
    ),
    (
        Images.OTHER_LOOK,
        history(shown(0, "cat"), shown(1, "cat", sent=RESCALED)),
        [
            history(shown(0, "cat"), shown(1, "dog", sent=RESCALED)),
            history(shown(0, "cat"), shown(1, "cat", sent=USUAL)),
            history(shown(0, "cat", sent=NORMALIZED), shown(1, "cat", sent=RESCALED)),
            history(shown(0, "cat"), shown(1, "cat", sent=RESCALED, salt="red")),
        ],
    ),
    (
        Images.OTHER_BACKGROUND,
        history(shown(0, "cat", sent=HOLE), shown(1, "cat", variant=1, sent=HOLE)),
        [
            history(shown(0, "cat", sent=HOLE), shown(1, "cat", sent=HOLE)),
            history(shown(0, "cat", sent=HOLE), shown(1, "dog", variant=1, sent=HOLE)),
            history(shown(0, "cat"), shown(1, "cat", variant=1, sent=HOLE)),
        ],
    ),
    (
        Images.TOLD_HITS,
        history(shown(0, "cat", sent=RESCALED), shown(1, "cat", sent=RESCALED, cached_tokens=16)),
        [
            history(shown(0, "cat"), shown(1, "cat", cached_tokens=16)),
            history(shown(0, "cat", sent=RESCALED), shown(1, "cat", sent=RESCALED, cached_tokens=10)),
        ],
    ),
    (Images.CUT_IMAGES, stepped(12), [stepped(10), stepped(26), stepped()]),
    (Images.CUT_IMAGES, counted(4, 3), [counted(3, 4), counted(None, None)]),
    (Images.PREEMPTED_IMAGES, counted(3, 4), [counted(4, 3), counted(None, None)]),
    (
        Images.PREEMPTED_IMAGES,
        history(shown(0, "cat", preemptions=1)),
        [history(shown(0, "cat", preemptions=0)), history(outcome(0, TEXT, preemptions=1))],
    ),
    (
        Images.EVICTED_IMAGES,
        history(shown(0, "cat"), shown(1, "cat", cached_tokens=16)),
        [
            history(shown(0, "cat"), shown(1, "cat", cached_tokens=32)),
            history(shown(0, "cat"), shown(1, "cat", cached_tokens=64)),
            history(shown(0, "dog"), shown(1, "cat", cached_tokens=16)),
        ],
    ),
]


def test_what_happened_is_counted_and_nothing_similar() -> None:
    """Each counter has the simplest history that it counts, and similar ones that it does not."""
    assert miscounted(SHOWS) == []


@pytest.mark.parametrize(
    ("then", "least", "most"),
    [
        (shown(1, "cat"), 64, 65),
        (shown(1, "dog"), 0, 10),  # only the text before it
        (shown(1, "cat", sent=PNG), 64, 65),  # the same pixels
        (shown(1, "cat", sent=NAMED), 0, 65),  # an engine may take the client's name for the image
        (shown(1, "cat", sent=USUAL), 0, 65),  # and need not know which arguments make the same pixels
        (shown(1, "cat", sent=RESCALED), 0, 10),
    ],
    ids=["the same", "another", "another file", "another name", "arguments", "arguments that change pixels"],
)
def test_expected_hits_follow_from_the_pixels(then: Outcome, least: int, most: int) -> None:
    """A prompt of 66 tokens is sent twice."""
    found = history(shown(0, "cat"), then)
    assert (at_least(found, then), at_most(found, then)) == (least, most)


@pytest.mark.parametrize(
    ("then", "words"),
    [
        (shown(1, "dog"), "; images"),
        (shown(1, "dog", sent=NAMED), "; images; named by the client"),
        (shown(1, "cat", sent=PNG), "; images; in files"),
        (shown(1, "cat", sent=RESCALED), "; images; processor arguments"),
    ],
)
def test_a_signature_says_how_images_were_sent(then: Outcome, words: str) -> None:
    """A waiver of one defect then does not cover another."""
    assert signature(history(shown(0, "cat"), then), FailureClass.CORRUPT, 1) == f"corrupt; no reload{words}"
