"""Prompts with images have what the model sees, and what a client sends with an image beside its pixels."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import find
from support.drawn_workloads import any_at_all, limits

from coldproof.adapters.protocol.capabilities import Capability
from coldproof.adapters.protocol.embedding_rows import NO_ROW, has_rows, is_row
from coldproof.adapters.protocol.images import (
    Arguments,
    Encoding,
    Look,
    SentImage,
    arguments_of,
    as_sent,
    has_images,
    image_and_offset,
    image_id,
    image_positions,
    images_of,
    is_image,
    look_of,
    pixels,
    sent_image,
)
from coldproof.adapters.protocol.weights import PauseMode
from coldproof.harness.features.images.cache_workloads import image_cache_resets
from coldproof.harness.features.weights.workloads import MODES
from coldproof.harness.history.prompts import hidden_of, tokens_of
from coldproof.harness.workload.steps import (
    Burst,
    Image,
    Pause,
    Prompt,
    Request,
    Resume,
    Rows,
    Segment,
    Workload,
    first_part,
)
from coldproof.harness.workload.tokens import NONCE_TOKENS, hidden_tokens, segment_tokens
from coldproof.harness.workload.validity import is_valid

SIDE, TOKENS = 32, 16
CAT = Segment("first", TOKENS, image=Image("cat"))


def seen(**changes: object) -> tuple[int, ...]:
    return segment_tokens("n", msgspec.structs.replace(CAT, image=msgspec.structs.replace(Image("cat"), **changes)))


def test_positions_name_the_image_and_how_far_within_it_they_are() -> None:
    """They do so whatever the name of the segment is."""
    found = [image_and_offset(number) for number in seen()]
    assert [offset for _, offset in found] == list(range(TOKENS))
    assert len({image for image, _ in found}) == 1
    assert segment_tokens("n", msgspec.structs.replace(CAT, name="second")) == seen()
    assert all(map(is_image, seen()))
    assert not any(map(is_row, seen()))
    assert has_images(seen())
    assert not has_rows(seen())


@pytest.mark.parametrize("changes", [{"name": "dog"}, {"pixel": 0}, {"pixel": 100}, {"arguments": Arguments.RESCALED}])
def test_other_pixels_are_seen_at_every_position(changes: dict[str, object]) -> None:
    """The model sees the whole image at each position."""
    assert all(mine != theirs for mine, theirs in zip(seen(), seen(**changes), strict=True))


@pytest.mark.parametrize(
    "changes", [{"uuid": "mine"}, {"encoding": Encoding.PNG}, {"arguments": Arguments.AS_CONFIGURED}]
)
def test_what_a_client_sends_with_an_image_is_carried_and_not_seen(changes: dict[str, object]) -> None:
    """Only the first position carries it."""
    other = msgspec.structs.replace(CAT, image=msgspec.structs.replace(Image("cat"), **changes))
    assert seen(**changes) == seen()
    first, *rest = hidden_tokens("n", other)
    assert first != hidden_tokens("n", CAT)[0]
    assert set(rest) == {NO_ROW}


def test_pixels_follow_from_the_image() -> None:
    """The image has patches of one colour, and a changed pixel is one pixel."""
    cat, dog, spot = (pixels(image_id("cat", v), SIDE) for v in (0, 0, 5))
    assert cat == dog
    assert cat != pixels(image_id("dog"), SIDE)
    assert len(cat) == 3 * SIDE * SIDE
    assert sum(mine != theirs for mine, theirs in zip(cat, spot, strict=True)) == 1
    colours = {cat[i : i + 3] for i in range(0, len(cat), 3)}
    assert 2 < len(colours) <= TOKENS


@pytest.mark.parametrize(
    "sent",
    [
        SentImage(),
        SentImage(Encoding.BMP),
        SentImage(Encoding.PNG, 7),
        SentImage(Encoding.PNG, 7, Arguments.LOWERED),
        SentImage(uuid=7, arguments=Arguments.RESCALED),
    ],
)
def test_a_number_carries_how_an_image_is_sent(sent: SentImage) -> None:
    """The number can be converted in both directions."""
    assert sent_image(sent.hidden()) == sent


def test_other_arguments_can_make_the_same_image() -> None:
    """Only what the model sees matters. The pixels that are sent are those of the image without arguments."""
    usual, rescaled, normalized, halved = (
        seen(arguments=one) for one in (Arguments.NONE, Arguments.RESCALED, Arguments.NORMALIZED, Arguments.HALVED)
    )
    assert rescaled == normalized
    assert len({usual, rescaled, halved}) == 3
    one, other = (image_and_offset(ids[0])[0] for ids in (usual, rescaled))
    assert (look_of(one), look_of(other)) == (Look.AS_SENT, Look.DOUBLED)
    assert as_sent(other) == one
    assert pixels(one, SIDE) == pixels(other, SIDE)


def test_a_request_has_one_set_of_processor_arguments() -> None:
    """The arguments are those that its images carry, or if that is unknown, those that explain what the model sees."""
    hidden = (SentImage(arguments=Arguments.NORMALIZED).hidden(), *(NO_ROW,) * 3)
    doubled = image_positions(image_id("cat", look=Look.DOUBLED), 4)
    assert arguments_of(doubled, hidden) is Arguments.NORMALIZED
    assert arguments_of(doubled, ()) is Arguments.RESCALED
    assert arguments_of(image_positions(3, 4), ()) is Arguments.NONE
    with pytest.raises(ValueError, match="several"):
        arguments_of((*doubled, *image_positions(3, 4)), ())


def test_images_are_found_where_they_begin() -> None:
    """The prompt has a token and two adjacent images."""
    prompt = (40, *image_positions(3, 4), *image_positions(5, 4))
    assert list(images_of(prompt)) == [(1, 3), (5, 5)]


def test_a_prompt_with_an_image_carries_what_is_hidden() -> None:
    """Other prompts carry nothing."""
    request = Request(prompt=Prompt((Segment("text", 3), CAT)))
    assert len(hidden_of(request, "n", {})) == len(tokens_of(request, "n", {})) == NONCE_TOKENS + 3 + TOKENS
    assert hidden_of(Request(prompt=Prompt((Segment("text", 3),))), "n", {}) == ()


@pytest.mark.parametrize(
    ("segment", "valid"),
    [
        (CAT, True),
        (msgspec.structs.replace(CAT, changed=1), False),
        (msgspec.structs.replace(CAT, swapped=1), False),
        (msgspec.structs.replace(CAT, rows=Rows(((0, 1),))), False),
    ],
)
def test_an_image_is_a_whole_segment(segment: Segment, valid: bool) -> None:
    """It has no edits of tokens or rows, and a minimiser does not cut it."""
    assert is_valid(Workload((Burst(requests=(Request(prompt=Prompt((segment,))),)),))) is valid
    assert first_part(CAT, 3) == CAT


def test_the_images_of_a_prompt_have_the_same_arguments() -> None:
    """The engine processes the images together."""
    halved = msgspec.structs.replace(CAT, image=Image("cat", arguments=Arguments.HALVED))
    for segments, valid in (((halved, halved), True), ((CAT, halved), False)):
        assert is_valid(Workload((Burst(requests=(Request(prompt=Prompt(segments)),)),))) is valid


def test_segments_are_read_back() -> None:
    """They are plain data."""
    whole = Segment("s", TOKENS, image=Image("cat", 3, Encoding.PNG, "mine", Arguments.HALVED))
    assert msgspec.json.decode(msgspec.json.encode(whole), type=Segment) == whole
    assert b"image" not in msgspec.json.encode(Segment("s", 3))


@pytest.mark.parametrize(("mode", "tier"), [(PauseMode.KEEP, False), (None, False), (None, True)])
def test_a_pause_that_clears_is_drawn_among_the_resets_of_images(mode: PauseMode | None, tier: bool) -> None:
    """A pause of a server clears the front end's cache of images as well (vllm#47147), if the server has pauses, and no
    second tier that might refuse it.
    """
    lacks = {capability for one, capability in MODES.items() if one is not mode and not tier}
    lacks |= set() if tier else {Capability.SECOND_TIER}
    able = msgspec.structs.replace(limits(), can=frozenset(Capability) - lacks, image_tokens=TOKENS)
    steps = find(image_cache_resets(able), lambda _: True, settings=any_at_all).steps
    pauses = [place for place, step in enumerate(steps) if isinstance(step, Pause)]
    if mode is None:
        assert pauses == []
        return
    assert pauses
    for place in pauses:
        assert steps[place : place + 2] == (Pause(mode=mode, clear=True), Resume())
        assert isinstance(steps[place + 2], Burst)
