"""How an adapter handles images: they take the positions that it reports, hit again, and are not confused."""

from __future__ import annotations

import msgspec
from contract.rules import check, ids, need, new_name, new_request, prompt

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.checked import CheckedEngine
from coldproof.adapters.protocol.images import Encoding, SentImage, image_id, image_positions
from coldproof.adapters.protocol.requests import Completion, CompletionRequest

WHERE = "EngineShape.image"
BEFORE, BEHIND = 24, 20  # tokens
OTHERS = 8  # of a small model with random weights, two images may have the same answer by chance


def around(engine: CheckedEngine, image: int, text: tuple[int, ...], encoding: Encoding) -> CompletionRequest:
    """Return a request with an image between the two parts of a text."""
    assert engine.shape.image is not None
    positions = image_positions(image, engine.shape.image.tokens)
    seen = (*text[:BEFORE], *positions, *text[BEFORE:])
    hidden = [0] * len(seen)
    hidden[BEFORE] = SentImage(encoding).hidden()
    return msgspec.structs.replace(new_request(engine), prompt=seen, hidden=tuple(hidden))


def test_an_image_is_hit_again_and_is_not_another_one(engine: CheckedEngine) -> None:
    """By the engine's own counts the same image hits again, and another image does not."""
    need(engine, Capability.IMAGES, Capability.CACHED_TOKENS)
    text = prompt(BEFORE + BEHIND)
    one = image_id(new_name())

    def sent(image: int) -> Completion:
        return engine.complete(around(engine, image, text, Encoding.PNG))

    first, again = sent(one), sent(one)
    check(ids(first) == ids(again), WHERE, "the same image has the same answer", ids(again))
    check((again.cached_tokens or 0) > BEFORE, WHERE, "the same image is hit", again.cached_tokens)
    others = []
    while not others or (ids(others[-1]) == ids(first) and len(others) < OTHERS):
        others.append(sent(image_id(new_name())))
        hit = others[-1].cached_tokens or 0
        check(hit <= BEFORE, WHERE, "another image is not hit", hit)
    check(ids(others[-1]) != ids(first), WHERE, f"the model sees {OTHERS} other images", ids(first))


def can_tell(engine: CheckedEngine) -> bool:
    """Return whether a request can tell the engine what is behind transparent pixels."""
    return engine.capabilities[Capability.PROCESSOR_ARGUMENTS].present is True


def test_the_same_pixels_have_the_same_answer_in_every_file(engine: CheckedEngine) -> None:
    """The encoding of an image does not change the answer."""
    need(engine, Capability.IMAGES)
    text, image = prompt(BEFORE + BEHIND), image_id(new_name())
    ways = [one for one in Encoding if one is not Encoding.TRANSPARENT or can_tell(engine)]
    answers = {way: ids(engine.complete(around(engine, image, text, way))) for way in ways}
    check(len(set(map(tuple, answers.values()))) == 1, "SentImage.encoding", "one answer for all", answers)
